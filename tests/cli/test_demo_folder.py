"""The folder of a demo: what is cleared, what is left alone, and who is kept out."""

import json
from pathlib import Path

import pytest

from elbowroom.cli.demo import NAMES, TITLE
from elbowroom.cli.demo_folder import clear
from elbowroom.errors import InvalidArgument


def make_demo(folder: Path, title: str = TITLE) -> None:
    folder.mkdir(exist_ok=True)
    record = {"kind": "run", "version": 1, "name": "run", "title": title}
    (folder / "run.jsonl").write_text(json.dumps(record) + "\n")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_what_a_demo_wrote_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    make_demo(tmp_path)
    for name in (*NAMES, "limited/plain-usual/plain-usual", "limited/plain-larger/plain-larger"):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    for name in ("pace.json", "pace.part"):
        (tmp_path / name).write_text("")
    (tmp_path / "notes.txt").write_text("precious")
    (tmp_path / "limited" / "plain-larger" / "notes.txt").write_text("precious")
    clear(tmp_path, TITLE, NAMES)
    assert files(tmp_path) == {
        "notes.txt",
        "limited",
        "limited/plain-larger",
        "limited/plain-larger/notes.txt",
    }


def test_a_foreign_record_is_refused_and_nothing_is_removed(tmp_path: Path) -> None:
    make_demo(tmp_path)
    (tmp_path / "results.jsonl").write_text("precious")
    (tmp_path / "plain.jsonl").write_text("{}")
    with pytest.raises(InvalidArgument, match=r"results\.jsonl, which no demo wrote: move it"):
        clear(tmp_path, TITLE, NAMES)
    assert files(tmp_path) == {"run.jsonl", "results.jsonl", "plain.jsonl"}


@pytest.mark.parametrize("text", ["hello\n", "[]\n", "[" * 10**5, '{"kind": "run"}\n'])
def test_a_run_that_is_no_demo_s_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.jsonl").write_text(text)
    with pytest.raises(InvalidArgument, match="something else than a demo"):
        clear(tmp_path, TITLE, NAMES)
    assert (tmp_path / "run.jsonl").read_text() == text


def test_a_run_of_one_s_own_is_refused(tmp_path: Path) -> None:
    make_demo(tmp_path, "My thesis")
    with pytest.raises(InvalidArgument, match="something else than a demo"):
        clear(tmp_path, TITLE, NAMES)


def test_what_a_full_disk_has_left_empty_is_a_demo_s(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text("")
    clear(tmp_path, TITLE, NAMES)
    assert not files(tmp_path)
