"""The calls of the operating system that a store makes, in one place: tests log and break them.

A store's own folders are opened first, no link followed, and files are then named in what was
opened: whoever may write to a store has no folder of another one changed through it.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from elbowroom.errors import CorruptData

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Inside(str):
    """A path in a store, which goes through no link below its root."""

    __slots__ = ("folder", "name")

    folder: str | None  # the folder of the store that it is in; None: the root, wherever that is
    name: str

    def __new__(cls, root: str, folder: str, name: str) -> "Inside":
        """The path of a name in a folder of a root, either of which may be empty."""
        made = super().__new__(cls, os.path.join(root, *filter(None, (folder, name))))
        made.folder = os.path.join(root, folder) if folder else None
        made.name = name
        return made


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[str, int | None]]:
    """The name of a path, and the open folder that it is to be looked for in."""
    if not isinstance(path, Inside) or path.folder is None:
        yield path, None
        return
    handle = open_folder(path.folder)
    try:
        yield path.name, handle
    finally:
        os.close(handle)


def open_folder(path: str) -> int:
    """Open a folder that is one itself, and no link to one."""
    try:
        return os.open(path, _FOLDER | os.O_NOFOLLOW)
    except OSError:
        if os.path.islink(path):
            raise CorruptData(
                f"{path} is a link, and a store has folders of its own: put a folder there"
            ) from None
        raise


class System:
    """What `os` does. A test's subclass sees every operation before it happens."""

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """Open a file."""
        if isinstance(path, Inside) and path.folder is not None and not path.name:
            return open_folder(path)
        with _opened(path) as (name, folder):
            return os.open(name, flags | os.O_CLOEXEC, mode, dir_fd=folder)

    def close(self, handle: int) -> None:
        """Close it."""
        os.close(handle)

    def write(self, handle: int, data: memoryview) -> int:
        """Write some of the bytes; return how many."""
        return os.write(handle, data)

    def read_into(self, handle: int, out: memoryview, offset: int) -> int:
        """Read some bytes from a place; return how many."""
        return os.preadv(handle, [out], offset)

    def sync(self, handle: int) -> None:
        """Have it on the disk."""
        os.fsync(handle)

    def flags(self, handle: int, flags: int) -> None:
        """Change how a file is written."""
        fcntl.fcntl(handle, fcntl.F_SETFL, flags)

    def size(self, handle: int) -> int:
        """Of an open file, in bytes."""
        return os.fstat(handle).st_size

    def rename(self, old: str, new: str) -> None:
        """Give a file its name."""
        with _opened(old) as (before, folder), _opened(new) as (after, target):
            os.rename(before, after, src_dir_fd=folder, dst_dir_fd=target)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name."""
        with _opened(old) as (there, folder), _opened(new) as (here, target):
            os.link(there, here, src_dir_fd=folder, dst_dir_fd=target, follow_symlinks=False)

    def remove(self, path: str) -> None:
        """Remove a file."""
        with _opened(path) as (name, folder):
            os.unlink(name, dir_fd=folder)

    def make_folder(self, path: str) -> None:
        """Make a folder."""
        os.mkdir(path)

    def names(self, path: str) -> list[str]:
        """What a folder has."""
        if not isinstance(path, Inside) or path.folder is None:
            return os.listdir(path)
        handle = open_folder(path.folder)
        try:
            return os.listdir(handle)
        finally:
            os.close(handle)

    def status(self, path: str) -> os.stat_result:
        """What a name is, without following links."""
        with _opened(path) as (name, folder):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def lock(self, handle: int, kind: int) -> None:
        """Lock a file."""
        fcntl.flock(handle, kind)
