"""The verb `report`: pages, JSON, events, and folders that are no runs."""

import os
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest

from tests.report.runs import record

from .conftest import Command

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's devices")


def test_a_page_is_written_into_the_run(command: Command, tmp_path: Path) -> None:
    record(tmp_path, "elbowroom", steps=2)
    ending = command("report", tmp_path)
    assert (ending.code, ending.err) == (0, "")
    page = tmp_path / "report.html"
    assert f"{page} (0." in ending.out and "finished" in page.read_text(encoding="utf-8")
    assert not list(tmp_path.glob("*.part"))


def test_a_running_run_can_be_rendered_again_and_again(command: Command, tmp_path: Path) -> None:
    recorder = record(tmp_path / "run", "elbowroom", steps=2, end=False)
    page = tmp_path / "pages" / "now.html"
    for state in ("still running", "interrupted"):
        assert command("report", tmp_path / "run", "--out", page).code == 0
        assert f">{state}<" in page.read_text(encoding="utf-8")
        if state == "still running":
            recorder.end("interrupted")


def test_json_has_what_was_measured_and_writes_nothing(command: Command, tmp_path: Path) -> None:
    record(tmp_path, "elbowroom", steps=2)
    found = command("report", tmp_path, "--json").json
    assert [step["step"] for step in found["contenders"][0]["steps"]] == [1, 2]
    assert not (tmp_path / "report.html").exists()


def test_events_for_tensorboard(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    record(tmp_path / "run", "elbowroom", steps=2)
    ending = command("report", tmp_path / "run", "--tensorboard", tmp_path / "events")
    assert ending.code == 0 and "tensorboard --logdir" in ending.out
    assert list((tmp_path / "events" / "elbowroom").glob("events.out.*"))


@pytest.mark.parametrize("works", [True, False])
def test_it_opens_the_page(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    record(tmp_path, "plain", steps=1)
    opened: list[str] = []

    def show(address: str) -> bool:
        opened.append(address)
        return works

    monkeypatch.setattr(webbrowser, "open", show)
    ending = command("report", tmp_path, "--open")
    assert opened == [(tmp_path / "report.html").as_uri()]
    assert ending.code == (0 if works else 1)
    assert ("no browser" in ending.err) != works


def test_what_is_no_run_is_refused_in_a_sentence(command: Command, tmp_path: Path) -> None:
    ending = command("report", tmp_path)
    assert ending.code == 2 and "not the folder of a run" in ending.err
    (tmp_path / "x.jsonl").write_text("hello\n")
    ending = command("report", tmp_path)
    assert ending.code == 2 and "x.jsonl, line 1 is no record" in ending.err
    assert ending.err.count("\n") == 1


def test_a_page_that_cannot_be_written_leaves_no_part(command: Command, tmp_path: Path) -> None:
    record(tmp_path, "plain", steps=1)
    blocked = tmp_path / "file"
    blocked.write_text("")
    ending = command("report", tmp_path, "--out", blocked / "report.html")
    assert ending.code == 1 and ending.err.startswith("elbowroom: ")
    assert "name another place with --out" in ending.err and "make room" not in ending.err
    assert not list(tmp_path.glob("*.part"))


@linux
def test_a_full_disk_is_told_with_what_helps(command: Command, tmp_path: Path) -> None:
    record(tmp_path, "plain", steps=1)
    ending = command("report", tmp_path, "--out", "/dev/full")
    assert ending.code == 1 and ending.err.count("\n") == 1
    assert "No space left on device): make room, or name another place" in ending.err


def test_a_link_stays_a_link(command: Command, tmp_path: Path) -> None:
    record(tmp_path / "run", "plain", steps=1)
    link, target = tmp_path / "link.html", tmp_path / "site" / "page.html"
    link.symlink_to(target)
    for _ in range(2):
        assert command("report", tmp_path / "run", "--out", link).code == 0
        assert link.is_symlink() and target.read_text(encoding="utf-8").startswith("<!DOCTYPE")
    assert [path.name for path in target.parent.iterdir()] == ["page.html"]


def test_a_link_to_itself_is_refused(command: Command, tmp_path: Path) -> None:
    record(tmp_path / "run", "plain", steps=1)
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    ending = command("report", tmp_path / "run", "--out", tmp_path / "a")
    assert ending.code == 2 and "leads to itself" in ending.err
    assert (tmp_path / "a").is_symlink()


@linux
def test_a_page_goes_straight_into_a_pipe(tmp_path: Path) -> None:
    record(tmp_path, "plain", steps=1)
    words = ["-m", "elbowroom", "report", str(tmp_path), "--out", "/dev/stdout"]
    done = subprocess.run([sys.executable, *words], capture_output=True, timeout=120, check=True)
    assert done.stdout.startswith(b"<!DOCTYPE") and done.stdout.endswith(b"</html>\n")
    assert done.stderr == b""


def test_what_lies_where_the_page_is_written_aside_is_left_alone(
    command: Command, tmp_path: Path
) -> None:
    record(tmp_path, "plain", steps=1)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / f"report.html.{os.getpid()}.part").symlink_to(precious)
    assert command("report", tmp_path).code == 0
    assert precious.read_text() == "precious"


@linux
def test_names_that_no_encoding_has_are_shown_with_marks(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/f\xff\xfe"
    record(Path(os.fsdecode(folder)), "plain", steps=1)
    words = [sys.executable, "-m", "elbowroom", "report", folder]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with open(folder + b"/report.html", encoding="utf-8") as page:
        assert "<title>f??</title>" in page.read()


def test_a_page_is_made_without_torch(tmp_path: Path) -> None:
    """Which takes longer to import than the page takes to make."""
    record(tmp_path, "elbowroom", steps=2)
    code = (
        "import atexit, sys\n"
        "from elbowroom.cli.main import main\n"
        "atexit.register(lambda: print('torch' in sys.modules))\n"
        "main(sys.argv[1:])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False"
