"""The demo: two trainings side by side for real, small; and everything that can go wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from elbowroom.cli.contender import NO_MEMORY, Settings
from elbowroom.cli.contest import run_alone
from elbowroom.report import read_run

from .conftest import Command

QUICK = ("demo", "--quick", "--steps", "2", "--batch", "2", "--no-limited")
LONG = ("demo", "--quick", "--steps", "5000", "--batch", "2", "--no-limited")
MAIN = [sys.executable, "-c", "from elbowroom.cli.main import main; main()"]

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and limits")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "run"


@pytest.fixture(scope="module")
def facts(folder: Path) -> dict[str, Any]:
    """What the demo prints, run as a user would."""
    words = [*MAIN, *LONG, "--seconds", "2", "--json", "--out", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_both_train_alike_and_only_one_keeps_less(facts: dict[str, Any], folder: Path) -> None:
    plain, room = (facts["contenders"][name] for name in ("plain", "elbowroom"))
    assert plain["kept_bytes"] == plain["saved_bytes"]
    assert room["kept_bytes"] < room["saved_bytes"] / 4
    assert room["saved_bytes"] == pytest.approx(plain["saved_bytes"], rel=0.05)
    assert plain["gradient_error"] is None
    assert 0 < room["measured_gradient_error"] < 1
    assert {"plain", "elbowroom"} == set(facts["contenders"])
    assert plain["score"]["baselines"] == room["score"]["baselines"]
    losses = [[s.loss for s in contender.steps] for contender in read_run(folder).contenders]
    assert losses[0][0] == losses[1][0]  # the same seed, and forward is not touched
    assert losses[1][:5] == pytest.approx(losses[0][:5], rel=0.02)


def test_time_that_is_up_ends_both_at_the_same_step(facts: dict[str, Any]) -> None:
    steps = {contender["steps"] for contender in facts["contenders"].values()}
    assert len(steps) == 1 and 1 <= steps.pop() < 5000
    assert facts["state"] == "finished" and "time was up" in facts["note"]


def test_memory_is_each_process_s_own(facts: dict[str, Any]) -> None:
    for contender in facts["contenders"].values():
        assert contender["baseline_bytes"] > 50e6
        assert 1e6 < contender["peak_bytes"] < 1e9


def test_the_report_is_there_and_says_how_to_repeat_it(facts: dict[str, Any], folder: Path) -> None:
    assert facts["report"] == str(folder / "report.html")
    page = Path(facts["report"]).read_text(encoding="utf-8")
    assert "elbowroom demo --quick --steps 5000" in page
    assert "finished" in page


@linux
def test_a_narrow_terminal_and_a_full_disk(command: Command, tmp_path: Path) -> None:
    import pty

    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.jsonl").write_text("")
    (folder / "report.html.part").symlink_to("/dev/full")
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*MAIN, *QUICK, "--out", str(folder)],
        stdout=slave,
        stderr=slave,
        stdin=slave,
        env={**os.environ, "COLUMNS": "40", "LINES": "20", "TERM": "xterm"},
    )
    os.close(slave)
    shown = b""
    while part := _read(master):
        shown += part
    assert process.wait(timeout=120) == 1
    os.close(master)
    text = shown.decode(errors="replace").replace("\r", "")
    assert "could not be written" in text and f"elbowroom report {folder}" in text
    table = [line.rstrip() for line in text.splitlines()]
    for name in ("peak memory", "saved bytes", "step time", "IoU", "gradient error"):
        (line,) = [line for line in table if line.startswith(name)]
        assert len(line) <= 40 and len(line.split()) >= 3
    assert command("report", folder).code == 0


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other side has gone
        return b""


def test_a_loss_that_is_not_finite_ends_in_a_sentence(command: Command, tmp_path: Path) -> None:
    ending = command(*QUICK, "--learning-rate", "1e30", "--out", tmp_path / "run")
    assert ending.code == 1
    assert "was not finite" in ending.err and "training 2 steps" in ending.err
    assert "peak memory" in ending.out and "\x1b" not in ending.out + ending.err
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "was not finite" in page


@linux
def test_interrupted_it_leaves_a_report_of_what_there_was(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [*MAIN, *LONG, "--out", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        files = list(folder.glob("*.jsonl"))
        if len(files) == 3 and all(len(c.steps) > 2 for c in read_run(folder).contenders):
            break
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err and "report.html" in err and "Traceback" not in err
    assert "peak memory" in out
    run = read_run(folder)
    assert run.state == "interrupted"
    assert {contender.state for contender in run.contenders} == {"interrupted"}
    assert "interrupted" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_folder_of_something_else_is_left_alone(command: Command, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    ending = command(*QUICK, "--out", tmp_path)
    assert ending.code == 2 and "something else" in ending.err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    ending = command(*QUICK, "--out", tmp_path / "thesis.tex")
    assert ending.code == 2 and "is a file" in ending.err


@linux
def test_what_plain_training_cannot_do_under_a_limit(tmp_path: Path) -> None:
    usual: dict[str, Any] = {"steps": 1, "batch": 6, "rows": 96}
    plain = Settings(name="plain", label="plain", **usual)
    ending, free = run_alone(tmp_path / "free", plain)
    assert ending.code == 0 and free is not None and free.memory is not None
    limit = int(0.6 * free.memory.above_bytes)
    tight = Settings(name="plain", label="plain", limit_bytes=limit, **usual)
    ending, refused = run_alone(tmp_path / "tight", tight)
    assert ending.code == NO_MEMORY and refused is not None
    assert "out of memory in step 1" in refused.note and refused.steps == ()
    room = Settings(name="room", label="room", tolerance=0.1, limit_bytes=limit, **usual)
    ending, finished = run_alone(tmp_path / "room", room)
    assert ending.code == 0 and finished is not None and len(finished.steps) == 1
