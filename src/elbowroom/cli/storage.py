"""Opens an .er file, be it one blob or an archive of them."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from elbowroom.cli.wording import listed
from elbowroom.codec import archive
from elbowroom.codec.blob import MAGIC, Blob
from elbowroom.errors import ElbowroomError, IncompatibleFormat, InvalidArgument


@dataclass(frozen=True, kw_only=True)
class Stored:
    """An open file: the bytes of every blob by name, and a way to read each."""

    named: bool  # False: a single blob, whose name here is empty
    sizes: dict[str, int]
    read: Callable[[str], Blob]


def refuse_name(path: Path, name: str, stored: Stored) -> NoReturn:
    """Say which names a file holds instead of the one that was asked for."""
    if not stored.named:
        raise InvalidArgument(
            f"{path} holds a single array, which has no name, not {name!r}: leave --name out"
        )
    held = f"one of {listed(stored.sizes)}" if stored.sizes else "another file, it is empty"
    raise InvalidArgument(f"{path} holds no array named {name!r}: choose {held}")


@contextmanager
def open_stored(path: Path) -> Iterator[Stored]:
    """Open the file; every complaint about its content names it."""
    with path.open("rb") as file:
        begin = file.read(4)
        file.seek(0)
        with naming(path):
            if begin == MAGIC:
                blob = Blob.frombytes(file.read())
                stored = Stored(named=False, sizes={"": blob.nbytes}, read=lambda _: blob)
            elif begin == archive.MAGIC:
                held = archive.Archive(file)
                sizes = {name: entry.length for name, entry in held.entries.items()}
                stored = Stored(named=True, sizes=sizes, read=held.read)
            else:
                raise IncompatibleFormat(
                    f"a file made by 'elbowroom encode' begins with {MAGIC!r} or "
                    f"{archive.MAGIC!r}, this one with {begin!r}: check the name, or encode it "
                    "first"
                )
        yield stored


@contextmanager
def naming(what: object) -> Iterator[None]:
    """Put what is being worked on in front of the sentence of an error."""
    try:
        yield
    except ElbowroomError as error:
        raise type(error)(f"{what}: {error}") from None
    except (MemoryError, RuntimeError) as error:
        # torch has no error of its own for it.
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise OSError(errno.ENOMEM, "There is not enough memory for this", str(what)) from None
        raise
