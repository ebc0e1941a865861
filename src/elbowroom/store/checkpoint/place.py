"""Where a store lies, as its users see it: files that appear whole and durable, or not at all."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from elbowroom.errors import CorruptData

ASIDE = ".part"  # what is being written has this at the end of its name

ReadInto = Callable[[int, memoryview], None]  # from this place on, as much as fits


class Sink(Protocol):
    """A file in the making."""

    position: int

    def append(self, data: memoryview) -> int:
        """Add bytes; return where they begin."""
        ...

    def align(self) -> None:
        """Fill up to the next block, so that what follows can be written from where it lies."""
        ...

    def commit(self) -> int:
        """Make it durable, then visible under its name; return its size in bytes."""
        ...

    def abandon(self) -> None:
        """Forget it."""
        ...


class Place(Protocol):
    """A folder on a disk, or what stands for one."""

    root: Any

    def make(self, *folders: str) -> None:
        """Have the folder, and these inside of it."""
        ...

    def names(self, folder: str) -> list[str]:
        """What a folder has, sorted."""
        ...

    def create(self, name: str) -> Sink:
        """Begin a file."""
        ...

    def read(self, name: str, most_bytes: int) -> bytes:
        """A whole small file."""
        ...

    def read_into(self, name: str, offset: int, out: memoryview) -> None:
        """Fill a buffer from a place in a file."""
        ...

    def opened(self, name: str) -> contextlib.AbstractContextManager[ReadInto]:
        """What fills a buffer from a place in a file, many times and from any thread."""
        ...

    def size(self, name: str) -> int:
        """Of a file, in bytes."""
        ...

    def sizes(self, folder: str, names: Iterable[str]) -> dict[str, int]:
        """Of those of these files that are there, in bytes."""
        ...

    def is_shared(self, name: str) -> bool:
        """Whether another store has the very same file, so that it costs nothing here."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; that it is not there is no error."""
        ...

    def remove_all(self, names: Iterable[str]) -> None:
        """Remove several."""
        ...

    def abort_uploads(self, is_ours: Callable[[str], bool]) -> int:
        """End uploads that nobody goes on with; return how many there were."""
        ...

    def sync(self, folder: str) -> None:
        """Make changes of a folder durable."""
        ...

    def lock(self, name: str, *, shared: bool = False) -> contextlib.AbstractContextManager[bool]:
        """Hold a lock; False where there is none to be had because another holds it."""
        ...

    def claim(self) -> None:
        """Where there are no locks: be the one who writes from now on."""
        ...

    def check_claim(self) -> None:
        """Refuse to go on where another has come to write."""
        ...

    def release(self) -> None:
        """Another may come."""
        ...

    def is_claimed(self) -> bool:
        """Whether another may be writing of whom no lock tells."""
        ...


def check_name(name: str) -> list[str]:
    """The parts of a file's name; one that would lead out of the store is refused."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts) or len(parts) > 2:
        raise CorruptData(f"{name!r} is no name of a file in a store")
    return parts
