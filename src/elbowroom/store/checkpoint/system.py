"""The calls of the operating system that a store makes, in one place: tests log and break them."""

import fcntl
import os


class System:
    """What `os` does. A test's subclass sees every operation before it happens."""

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """Open a file."""
        return os.open(path, flags | os.O_CLOEXEC, mode)

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
        os.rename(old, new)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name."""
        os.link(old, new, follow_symlinks=False)

    def remove(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        """Make a folder."""
        os.mkdir(path)

    def names(self, path: str) -> list[str]:
        """What a folder has."""
        return os.listdir(path)

    def status(self, path: str) -> os.stat_result:
        """What a name is, without following links."""
        return os.lstat(path)

    def lock(self, handle: int, kind: int) -> None:
        """Lock a file."""
        fcntl.flock(handle, kind)
