"""The journal: lines are whole or do not count, none counts twice, and a full disk loses none."""

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.study.journal import (
    DAMAGED,
    NAME,
    append_row,
    read_journal,
    set_damaged_aside,
)

ROWS = [{"key": f"k{number}", "outcome": {"value": number / 7}} for number in range(4)]


def write(folder: Path) -> bytes:
    for row in ROWS:
        append_row(folder, row)
    return (folder / NAME).read_bytes()


def test_rows_come_back_and_lines_are_json(tmp_path: Path) -> None:
    text = write(tmp_path)
    assert list(read_journal(tmp_path)[0].values()) == ROWS
    assert [json.loads(line)["row"] for line in text.splitlines()] == ROWS
    assert read_journal(tmp_path / "none") == ({}, 0)


def test_a_torn_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    text = write(tmp_path)
    (tmp_path / NAME).write_bytes(text[:-9])
    rows, damaged = read_journal(tmp_path)
    assert (list(rows.values()), damaged) == (ROWS[:3], 1)
    append_row(tmp_path, ROWS[3])
    rows, damaged = read_journal(tmp_path)
    assert (list(rows.values()), damaged) == (ROWS, 1)


@given(st.data())
def test_no_altered_byte_alters_a_row(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    text = bytearray(write(folder))
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= data.draw(st.integers(1, 255))
    (folder / NAME).write_bytes(bytes(text))
    rows, damaged = read_journal(folder)
    assert all(row in ROWS for row in rows.values())
    assert len(rows) >= len(ROWS) - 2 and damaged >= 1


def test_a_row_counts_once(tmp_path: Path) -> None:
    write(tmp_path)
    append_row(tmp_path, {**ROWS[1], "outcome": {"value": 99}})
    rows, damaged = read_journal(tmp_path)
    assert list(rows.values()) == ROWS and damaged == 0


def test_a_cell_on_other_data_is_another_row(tmp_path: Path) -> None:
    write(tmp_path)
    other = {**ROWS[1], "outcome": {"value": 99, "data_crc32": 5}}
    append_row(tmp_path, other)
    assert list(read_journal(tmp_path)[0].values()) == [*ROWS, other]


def test_damaged_lines_are_set_aside_once(tmp_path: Path) -> None:
    text = write(tmp_path)
    lines = text.splitlines(keepends=True)
    (tmp_path / NAME).write_bytes(lines[0] + b"noise\n" + lines[2] + lines[3][:-9])
    assert set_damaged_aside(tmp_path) == 2
    assert (tmp_path / NAME).read_bytes() == lines[0] + lines[2]
    assert (tmp_path / DAMAGED).read_bytes() == b"noise\n" + lines[3][:-9] + b"\n"
    assert set_damaged_aside(tmp_path) == 0 and set_damaged_aside(tmp_path / "none") == 0
    assert not list(tmp_path.glob(".*"))


def test_what_does_not_fit_on_the_disk_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write(tmp_path)
    real = os.write

    def write_half(file: int, line: bytes) -> int:
        return real(file, line[: len(line) // 2])

    monkeypatch.setattr(os, "write", write_half)
    with pytest.raises(OSError, match="No space") as full:
        append_row(tmp_path, {"key": "late"})
    assert full.value.errno == errno.ENOSPC
    assert (tmp_path / NAME).read_bytes() == before
