"""Appends records to a file of JSON lines, so that whoever reads meanwhile sees whole lines."""

import errno
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elbowroom.errors import InvalidArgument
from elbowroom.report.model import VERSION, clean

SUFFIX = ".jsonl"
RUN = "run"  # the file of the run itself; every other one is a contender's

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_name(name: str) -> None:
    """Refuse a contender's name that would lead out of the folder."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"the name must be letters, digits, - and _, got {name!r}: it becomes a file's name"
        )


class Writer:
    """A file of one writer: every record is one line and one write."""

    def __init__(self, folder: Path | str, name: str, kind: str, header: Mapping[str, Any]) -> None:
        check_name(name)
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{name}{SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC
        self._file = os.open(self.path, flags, 0o644)
        self._length = 0
        self.append(kind, version=VERSION, name=name, **header)

    def append(self, kind: str, **fields: Any) -> None:
        """Write one record; raises OSError where there is no room for it."""
        data = json.dumps({"kind": kind, **clean(fields)}, allow_nan=False).encode() + b"\n"
        written = os.write(self._file, data)
        if written != len(data):
            # A line that a full disk has cut short must not swallow the next one.
            os.ftruncate(self._file, self._length)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._length += written

    def end(self, state: str, note: str = "") -> None:
        """The last record."""
        self.append("end", state=state, note=note)

    def close(self) -> None:
        """Give the file back."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
