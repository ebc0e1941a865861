"""Folders that one process works in at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elbowroom.errors import InvalidArgument


@contextmanager
def held(folder: Path, work: str) -> Iterator[None]:
    """Make the folder and keep a second such work, a demo or a study, out of it."""
    if folder.exists() and not folder.is_dir():
        raise InvalidArgument(
            f"{folder} is a file, and a folder is needed: name another with --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    # The folder itself is locked: a file would lie about among what others have put there.
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgument(
                f"another {work} is at work in {folder}: wait for it, or name another with --out"
            ) from None
        except OSError:
            pass  # a file system without locks, where the user has to see to it
        yield
    finally:
        os.close(handle)
