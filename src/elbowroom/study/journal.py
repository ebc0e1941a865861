"""The journal of a study: one line a finished cell, whole or not at all, never counted twice."""

import json
import os
import zlib
from pathlib import Path
from typing import Any

NAME = "cells.jsonl"
DAMAGED = "cells.damaged.jsonl"
MOST_LINE_BYTES = 1 << 20

# A line is an object of JSON, and its row also stands alone: the sum is that of the row's text.
_FRONT, _MIDDLE, _BACK = b'{"crc32":"', b'","row":', b"}\n"

Row = dict[str, Any]
Identity = tuple[str, int | None]  # the key of a cell, and the checksum of the data


def identify(row: Row) -> Identity:
    """Return what tells rows apart: the same cell on other data is another training."""
    return row["key"], row.get("outcome", {}).get("data_crc32")


def read_journal(folder: Path) -> tuple[dict[Identity, Row], int]:
    """Return what is finished, and how many lines are damaged.

    A line that is cut short or altered does not count: its cell is trained again. Of two lines
    of one cell on the same data the first counts.
    """
    path = folder / NAME
    if not path.exists():
        return {}, 0
    found: dict[Identity, Row] = {}
    damaged = 0
    with path.open("rb") as lines:
        for line in lines:
            row = _read_line(line)
            if row is None:
                damaged += 1
            else:
                found.setdefault(identify(row), row)
    return found, damaged


def set_damaged_aside(folder: Path) -> int:
    """Move damaged lines into a file of their own, so that they are told once; return how many."""
    path = folder / NAME
    if not path.exists():
        return 0
    with path.open("rb") as file:
        lines = list(file)
    damaged = [line for line in lines if _read_line(line) is None]
    if not damaged:
        return 0
    with (folder / DAMAGED).open("ab") as aside:
        aside.write(b"".join(line.removesuffix(b"\n") + b"\n" for line in damaged))
    whole = b"".join(line for line in lines if _read_line(line) is not None)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("wb") as file:
            file.write(whole)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return len(damaged)


def append_row(folder: Path, row: Row) -> None:
    """Write one line and wait until it is on the disk; a line that does not fit is taken back."""
    line = _make_line(row)
    path = folder / NAME
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        end = os.lseek(file, 0, os.SEEK_END)
        if end and os.pread(file, 1, end - 1) != b"\n":
            # What a crash has cut short must not swallow this line.
            line = b"\n" + line
        try:
            written = os.write(file, line)
            if written != len(line):
                raise OSError(28, os.strerror(28), str(path))
            os.fsync(file)
        except OSError:
            os.ftruncate(file, end)
            raise
    finally:
        os.close(file)


def _make_line(row: Row) -> bytes:
    text = json.dumps(row, sort_keys=True, allow_nan=False)
    return _FRONT + f"{zlib.crc32(text.encode()):08x}".encode() + _MIDDLE + text.encode() + _BACK


def _read_line(line: bytes) -> Row | None:
    start = len(_FRONT) + 8
    whole = line.startswith(_FRONT) and line.endswith(_BACK) and len(line) <= MOST_LINE_BYTES
    if not whole or line[start : start + len(_MIDDLE)] != _MIDDLE:
        return None
    text = line[start + len(_MIDDLE) : -len(_BACK)]
    try:
        if int(line[len(_FRONT) : start], 16) != zlib.crc32(text):
            return None
        row = json.loads(text)
    except ValueError:
        return None
    known = isinstance(row, dict) and isinstance(row.get("key"), str)
    return row if known and isinstance(row.get("outcome", {}), dict) else None
