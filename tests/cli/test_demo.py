"""The demo: two trainings side by side for real, small; and everything that can go wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from elbowroom.cli.contender import PACE
from elbowroom.folders import held
from elbowroom.report import read_run
from elbowroom.report.model import Contender

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
    assert facts["state"] == "stopped" and "time was up" in facts["note"]


def test_the_reading_is_of_the_step_that_was_really_the_last(
    facts: dict[str, Any], folder: Path
) -> None:
    room = read_run(folder).find("elbowroom")
    assert room is not None
    (reading,) = room.readings
    assert reading.step == len(room.steps) < 5000
    # One prediction everywhere: that of the batches which were measured.
    assert facts["contenders"]["elbowroom"]["gradient_error"] == reading.predicted
    assert facts["contenders"]["elbowroom"]["tolerance"] == 0.1
    assert facts["contenders"]["plain"]["tolerance"] is None


def test_chart_ledger_and_tile_are_of_the_same_step(facts: dict[str, Any], folder: Path) -> None:
    """The gradients that are compared at the end take passes of their own."""
    room = read_run(folder).find("elbowroom")
    assert room is not None and room.timeline is not None
    assert room.timeline.step == len(room.steps)
    held = accumulate(moment.held_bytes for moment in room.timeline.moments)
    assert max(held) == room.kept_bytes == sum(row.kept_bytes for row in room.rows)


def test_memory_is_each_process_s_own(facts: dict[str, Any]) -> None:
    for contender in facts["contenders"].values():
        assert contender["baseline_bytes"] > 50e6
        assert 1e6 < contender["peak_bytes"] < 1e9


def test_the_report_is_there_and_says_how_to_repeat_it(facts: dict[str, Any], folder: Path) -> None:
    assert facts["report"] == str(folder / "report.html")
    page = Path(facts["report"]).read_text(encoding="utf-8")
    assert "elbowroom demo --quick --steps 5000" in page
    assert ">stopped by time<" in page and "IoU: of the cells" in page
    assert "<dt>tolerance</dt><dd>none</dd>" in page and "<dt>instruction set</dt>" in page


@linux
def test_a_narrow_terminal_and_a_page_that_is_refused(command: Command, tmp_path: Path) -> None:
    import pty

    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.jsonl").write_text("")
    # What cannot be written: a link to /dev/full, as on a full disk, would be replaced.
    (folder / "report.html" / "report.html").mkdir(parents=True)
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
    for name in ("peak memory", "saved bytes", "step time", "IoU", "gradient error", "  tolerance"):
        lines = [line for line in table if line.startswith(name) and not line.startswith("IoU:")]
        assert len(lines) == 1 and len(lines[0]) <= 40 and len(lines[0].split()) >= 3
    ending = command("report", folder)
    assert ending.code == 1 and "could not be written" in ending.err
    assert "name another place with --out" in ending.err and ending.err.count("\n") == 1
    (folder / "report.html" / "report.html").rmdir()
    (folder / "report.html").rmdir()
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


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--learning-rate", value) for value in ("0", "-1", "nan", "inf")),
        ("--seconds", "nan"),
        ("--seed", str(2**64)),
    ],
)
def test_numbers_that_make_no_sense_are_refused_before_anything_starts(
    command: Command, tmp_path: Path, option: str, value: str
) -> None:
    ending = command(*QUICK, option, value, "--out", tmp_path / "run")
    assert ending.code == 2 and option in ending.err
    assert not (tmp_path / "run").exists()


@linux
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_leaves_a_report_of_what_there_was(
    tmp_path: Path, number: int, code: int
) -> None:
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
    assert (folder / PACE).exists()
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert not (folder / PACE).exists()
    assert "interrupted" in err and "report.html" in err and "Traceback" not in err
    assert "peak memory" in out
    run = read_run(folder)
    assert run.state == "interrupted"
    assert {contender.state for contender in run.contenders} == {"interrupted"}
    assert "interrupted" in (folder / "report.html").read_text(encoding="utf-8")


@linux
def test_a_training_that_is_killed_ends_in_a_sentence(tmp_path: Path) -> None:
    """The other one must not wait for it."""
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [*MAIN, *LONG, "--seconds", "2", "--out", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if any(c.name == "plain" and c.steps for c in _glance(folder)):
            break
        time.sleep(0.05)
    os.kill(_child_of(process.pid, '"plain"'), signal.SIGKILL)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "the training 'plain' was killed (signal 9), perhaps for want of memory" in err
    assert "Traceback" not in err and "peak memory" in out
    run = read_run(folder)
    assert run.state == "failed" and "signal 9" in run.note


def _glance(folder: Path) -> tuple[Contender, ...]:
    return read_run(folder).contenders if list(folder.glob("*.jsonl")) else ()


def _child_of(parent: int, word: str) -> int:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status = (path / "stat").read_text().rpartition(")")[2].split()
            words = (path / "cmdline").read_text()
        except OSError:
            continue  # it has gone meanwhile
        if int(status[1]) == parent and word in words:
            return int(path.name)
    raise AssertionError(f"no process {word} was found")


@linux
def test_a_second_demo_is_kept_out(command: Command, tmp_path: Path) -> None:
    with held(tmp_path / "run", "demo"):
        ending = command(*QUICK, "--out", tmp_path / "run")
    assert ending.code == 2 and "another demo is at work" in ending.err
    assert not list((tmp_path / "run").iterdir())


def test_a_folder_of_something_else_is_left_alone(command: Command, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    ending = command(*QUICK, "--out", tmp_path)
    assert ending.code == 2 and "something else" in ending.err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    ending = command(*QUICK, "--out", tmp_path / "thesis.tex")
    assert ending.code == 2 and "is a file" in ending.err
