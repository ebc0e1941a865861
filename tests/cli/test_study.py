"""The verb study: what it prints, refuses and leaves behind."""

import csv
import errno
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from elbowroom.folders import held
from elbowroom.study import campaign, drawing, table
from elbowroom.study.journal import NAME, read_journal

from .conftest import Command, Ending

SMALL = ("study", "--network", "cms-perceptron", "--steps", "4", "--seeds", "1")
ROOM = (*SMALL, "--tolerance", "0.1")
SECONDS = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def facts(folder: Path) -> dict[str, Any]:
    """What a small study prints for programs."""
    words = [sys.executable, "-m", "elbowroom", *ROOM, "--bound", "0.1", "--kind", "linear"]
    words += ["--out", str(folder), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_programs_get_every_figure(facts: dict[str, Any], folder: Path) -> None:
    assert set(facts) == {"cells", "failures", "comparisons", "table", "page"}
    assert facts["cells"] == {
        "asked": 3,
        "before": 0,
        "other_data": 0,
        "trained": 3,
        "diverged": 0,
        "failed": 0,
        "damaged_lines": 0,
    }
    room, fixed = facts["comparisons"]
    assert set(room) == set(fixed)
    assert {"network", "steps", "metric", "seeds", "gain", "error", "ratio"} < set(room)
    assert (room["method"], room["tolerance"], fixed["kind"]) == ("room", 0.1, "linear")
    assert room["seeds"] == 1 and room["error"] is None and room["plain"] is not None
    assert fixed["ratio"] > 2 and fixed["gradient_error"] > 0
    with Path(facts["table"]).open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 3
    assert "<html" in Path(facts["page"]).read_text(encoding="utf-8")


def run_again(command: Command, folder: Path, *words: str) -> Ending:
    return command(*ROOM, "--bound", "0.1", "--kind", "linear", "--out", folder, *words)


def test_what_is_done_is_not_done_again(
    facts: dict[str, Any], folder: Path, command: Command
) -> None:
    before = (folder / NAME).read_bytes()
    end = run_again(command, folder)
    assert end.code == 0
    assert "3 trainings, 3 of them done before" in end.err
    assert "room 0.1" in end.out and "linear: dense, range 0.1 dithered" in end.out
    assert str(folder / "study.csv") in end.out
    assert (folder / NAME).read_bytes() == before


def test_the_plan_trains_nothing(
    facts: dict[str, Any], folder: Path, command: Command, tmp_path: Path
) -> None:
    plan = run_again(command, folder, "--plan", "--json").json
    assert [cell["done"] for cell in plan["cells"]] == [True] * 3
    assert (plan["trainings"], plan["steps"], plan["steps_left"]) == (3, 12, 0)
    end = command("study", "--preset", "accuracy", "--out", tmp_path / "none", "--plan")
    assert end.code == 0 and end.out.count("\n") == 1 + 4 * 2 * 5 + 2
    assert "40 trainings of 17,500 steps together; 40 of 17,500 steps left." in end.out
    assert "not known before each network has been trained here once" in end.out
    end = run_again(command, folder, "--plan", "--steps", "1000")
    assert "3 trainings of 3,000 steps together" in end.out
    assert "At the step times of this folder, one job needs about" in end.out
    assert not (tmp_path / "none").exists()
    plan = command(*SMALL, "--share", "0.5", "--out", tmp_path, "--plan", "--json").json["cells"]
    assert [cell["treatment"]["method"] for cell in plan] == ["plain", "batch"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--preset", "luck"), "no preset 'luck': choose of accuracy"),
        (("--network", "brain"), "no network 'brain' in the study"),
        (("--tolerance", "much"), "--tolerance takes numbers"),
        (("--bound", "0.1", "--kind", "carpet"), "kind is one of all"),
        (("--bound", "3", "--mode", "pointwise"), "share below 1"),
        (("--bound", "2", "--codec", "group"), "bits belong to the codec group"),
        (("--tolerance", "0.1", "--rule", "hope"), "rule is one of"),
        (("--share", "2"), "a share of the batch must be above 0 and below 1"),
        (("--tolerance", "1e300"), "a tolerance must be a share from 0"),
        (("--tolerance", ","), "--tolerance takes one or several"),
        (("--network", ","), "--network takes one or several"),
        (("--kind", "norm"), "--kind belongs to --bound"),
        (("--no-dither",), "--dither belongs to --bound"),
    ],
)
def test_bad_input_gets_a_sentence(
    command: Command, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    end = command("study", "--out", tmp_path / "out", *words)
    assert end.code == 2 and said in end.err and end.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_missing_data_names_the_way_to_it(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELBOWROOM_DATA", str(tmp_path))
    end = command("study", "--network", "cifar-resnet", "--out", tmp_path / "out", "--seeds", "1")
    assert end.code == 2
    assert end.err.splitlines()[-1].startswith("elbowroom: the data set cifar10")
    assert "ELBOWROOM_DATA" in end.err


def test_a_folder_in_use_is_refused(command: Command, tmp_path: Path) -> None:
    with held(tmp_path, "study"):
        end = command(*ROOM, "--out", tmp_path)
    assert end.code == 2 and "another study is at work" in end.err


def test_a_full_disk_loses_nothing(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = campaign.append_row
    written: list[object] = []

    def append(folder: Path, row: dict[str, Any]) -> None:
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        written.append(row)
        real(folder, row)

    monkeypatch.setattr(campaign, "append_row", append)
    end = command(*ROOM, "--out", tmp_path)
    assert end.code == 1
    assert "no room left on the disk" in end.err and "1 of 2 trainings" in end.err
    assert len(read_journal(tmp_path)[0]) == 1


def test_no_room_for_the_table_is_told_too(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: Path, text: str) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    for module in (table, drawing):
        monkeypatch.setattr(module, "write_whole", write)
    end = command(*SMALL, "--share", "0.5", "--out", tmp_path)
    assert end.code == 1 and "Traceback" not in end.err
    assert "no room left on the disk" in end.err and "2 of 2 trainings" in end.err
    assert "make room; the same command goes on" in end.err


def test_failures_say_whether_trying_again_helps(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasting = iter((True, False))

    def ask(self: object, request: dict[str, Any], hear: object) -> dict[str, Any]:
        if request["kind"] == "prepare":
            return {"kind": "ready", "data_crc32": 1}
        return {"kind": "error", "error": "X", "said": "it broke", "lasting": next(lasting)}

    monkeypatch.setattr(campaign._Worker, "ask", ask)
    end = command(*ROOM, "--out", tmp_path)
    assert end.code == 1
    assert "plain, seed 0: it broke; the same command fails again until that is" in end.err
    assert "room 0.1, seed 0: it broke; the same command tries it again" in end.err
    assert "goes on from there" not in end.err


def test_damage_and_other_data_are_told_once(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*SMALL, "--share", "0.5", "--out", tmp_path)
    assert command(*words).code == 0
    (tmp_path / NAME).write_bytes((tmp_path / NAME).read_bytes() + b"noise\n")
    end = command(*words)
    assert "1 damaged line of the journal did not count" in end.err
    assert "damaged" not in command(*words).err
    real = campaign._Crew.prepare

    def prepare(self: Any, networks: list[str]) -> dict[str, int]:
        return {name: found + 1 for name, found in real(self, networks).items()}

    monkeypatch.setattr(campaign._Crew, "prepare", prepare)
    end = command(*words)
    assert "2 trainings of this folder had other data and did not count" in end.err
    assert "2 trainings, 0 of them done before" in end.err


def test_pairs_that_do_not_fit_are_named(command: Command, tmp_path: Path) -> None:
    words = ("--bound", "2", "--codec", "dense,group", "--mode", "range,bits", "--plan")
    end = command(*SMALL, "--out", tmp_path, *words)
    assert end.code == 0 and "group, 2 bits" in end.out
    assert "left out, since they do not go together: dense with bits 2, group with" in end.err


def test_a_request_to_end_has_its_own_code(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "elbowroom", *ROOM, "--seeds", "500", "--out", str(tmp_path)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=quiet, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("2/"):
                break
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait(SECONDS) == 128 + signal.SIGTERM
    assert "interrupted after" in said and "Traceback" not in said


def test_an_interrupt_ends_in_order_and_a_narrow_terminal_will_do(tmp_path: Path) -> None:
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    words = [sys.executable, "-m", "elbowroom", *ROOM, "--out", str(tmp_path)]
    words[words.index("--steps") + 1] = "100000"
    process = subprocess.Popen(words, stderr=child, stdout=child, stdin=child)
    os.close(child)
    shown = b""
    while b"/100000" not in shown:
        shown += os.read(parent, 4096)
    process.send_signal(signal.SIGINT)
    try:
        while more := os.read(parent, 4096):
            shown += more
    except OSError:
        pass  # the terminal's other end is closed
    os.close(parent)
    assert process.wait(SECONDS) == 130
    text = shown.decode()
    assert "cms-perceptron" in text and "Traceback" not in text
    assert "interrupted after 0 of 2" in text and "goes on from there" in text.replace("\r\n", " ")
