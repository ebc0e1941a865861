"""Stores in what fsspec reaches: buckets, clusters' file systems, memory.

An object appears when it is complete, so nothing is written aside. There are no locks: two runs in
one bucket do not overwrite each other's files, whose names never come twice, but the newest
checkpoint is that of either.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from elbowroom.errors import BackendUnavailable, CorruptData, InvalidArgument
from elbowroom.store.checkpoint.place import LocalPlace, Place, ReadInto, check_name
from elbowroom.store.checkpoint.system import System

_FILES = "file://"


def place_at(where: str | Path, system: System | None = None) -> "LocalPlace | ObjectPlace":
    """The place of a path, or of an address with a scheme."""
    if not isinstance(where, str | Path) or not str(where).strip() or "\0" in str(where):
        raise InvalidArgument(f"checkpoints need the name of a folder, got {where!r}")
    # What lies on a disk is written as to a disk, however it is called: synced, and locked.
    if isinstance(where, str) and where.startswith(_FILES):
        where = where.removeprefix(_FILES)
    elif isinstance(where, str) and "://" in where:
        return ObjectPlace(where)
    return LocalPlace(Path(where).expanduser(), system)


class ObjectPlace(Place):
    """A prefix of an object store."""

    def __init__(self, url: str) -> None:
        import fsspec

        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise BackendUnavailable(f"{url} cannot be reached: {error}") from error
        self.root = url

    def make(self, *folders: str) -> None:
        """Have the folders, where there are such."""
        for folder in ("", *folders):
            self._files.makedirs(self._path(folder), exist_ok=True)

    def names(self, folder: str) -> list[str]:
        """What a folder has, sorted."""
        path = self._path(folder)
        self._files.invalidate_cache()
        try:
            found = self._files.ls(path, detail=False)
        except FileNotFoundError:
            return []
        names = {str(one).rstrip("/").rpartition("/")[2] for one in found}
        return sorted(names - {"", path.rpartition("/")[2]} if folder else names - {""})

    def create(self, name: str) -> "ObjectSink":
        """Begin an object."""
        return ObjectSink(self._files, self._path(name))

    def read(self, name: str, most_bytes: int) -> bytes:
        """A whole small object."""
        if self.size(name) > most_bytes:
            raise CorruptData(f"{name} has {self.size(name)} bytes, more than such a file ever has")
        return self._files.cat_file(self._path(name))

    def read_into(self, name: str, offset: int, out: memoryview) -> None:
        """Fill a buffer from a place in an object."""
        if not len(out):
            return
        data = self._files.cat_file(self._path(name), start=offset, end=offset + len(out))
        if len(data) != len(out):
            raise CorruptData(
                f"{name} ends after {offset + len(data)} bytes, and {len(out) - len(data)} more "
                "are needed: it was cut short"
            )
        out[:] = data

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[ReadInto]:
        """Objects are not opened; every read asks for its own bytes."""
        yield partial(self.read_into, name)

    def size(self, name: str) -> int:
        """In bytes."""
        found = self._files.info(self._path(name))
        if found.get("type") != "file" or not isinstance(found.get("size"), int):
            raise CorruptData(f"{name} is no ordinary file, and a store has none but such")
        return found["size"]

    def is_shared(self, name: str) -> bool:
        """Objects have one name."""
        del name
        return False

    def remove(self, name: str) -> None:
        """Remove an object; that it is not there is no error."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def sync(self, folder: str) -> None:
        """Objects that are there are durable."""

    @contextlib.contextmanager
    def lock(self, name: str, *, shared: bool = False) -> Iterator[bool]:
        """There are none; whoever has several runs gives each a place of its own."""
        del name, shared
        yield True

    def _path(self, name: str) -> str:
        if not name:
            return self._root
        check_name(name)
        return f"{self._root.rstrip('/')}/{name}"


class ObjectSink:
    """An object in the making, which appears when it is committed."""

    def __init__(self, files: Any, path: str) -> None:
        if files.exists(path):
            raise FileExistsError(path)
        self._file = files.open(path, "wb", autocommit=False)
        self.position = 0

    def append(self, data: memoryview) -> int:
        """Add bytes; return where they begin."""
        start = self.position
        self._file.write(data)
        self.position += len(data)
        return start

    def align(self) -> None:
        """Nothing is gained by it here."""

    def commit(self) -> int:
        """Make it visible under its name; return its size in bytes."""
        self._file.close()
        self._file.commit()
        return self.position

    def abandon(self) -> None:
        """Forget it, as far as that is possible."""
        with contextlib.suppress(Exception):
            self._file.close()
        with contextlib.suppress(Exception):
            self._file.discard()
