"""Records as they are written: whole lines, a full disk, names."""

import os
import sys
from pathlib import Path

import pytest

from elbowroom.errors import InvalidArgument
from elbowroom.report import read_run
from elbowroom.report.writing import Writer

HEADER = {"label": "x", "planned_steps": None, "facts": {}}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full is Linux's")
def test_a_full_disk_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        Writer(tmp_path, "x", "contender", HEADER)


def test_a_line_that_was_cut_short_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, "x", "contender", HEADER)
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[: len(data) // 2]))
    with pytest.raises(OSError, match="No space left"):
        writer.append("step", step=1, loss=1.0, seconds=1.0)
    monkeypatch.undo()
    writer.append("step", step=2, loss=1.0, seconds=1.0)
    assert [step.step for step in read_run(tmp_path).contenders[0].steps] == [2]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 65, "a b"])
def test_names_that_are_no_files_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match="name"):
        Writer(tmp_path / "inside", name, "contender", HEADER)
    assert not list(tmp_path.iterdir())


def test_a_new_writer_begins_anew(tmp_path: Path) -> None:
    with Writer(tmp_path, "x", "contender", HEADER) as writer:
        writer.append("step", step=1, loss=1.0, seconds=1.0)
    Writer(tmp_path, "x", "contender", HEADER).close()
    assert read_run(tmp_path).contenders[0].steps == ()
