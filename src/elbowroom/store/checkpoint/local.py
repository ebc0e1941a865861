"""Stores in folders: files are written aside, made durable and renamed; links are not followed."""

import contextlib
import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.store.checkpoint.locks import held_locks
from elbowroom.store.checkpoint.place import ASIDE, Place, ReadInto, check_name
from elbowroom.store.checkpoint.system import Inside, System

_BLOCK_BYTES = 4096
_STAGE_BYTES = 8 << 20
# Another file system, one without links, too many of them, or a file that is not ours to link.
_UNLINKABLE = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)


class LocalPlace(Place):
    """A folder of a file system."""

    def __init__(self, root: Path, system: System | None = None) -> None:
        self.root = Path(os.path.abspath(root))
        self.system = system or System()

    def path(self, name: str) -> Inside:
        """Where a name lies."""
        folder, name = ["", *check_name(name)][-2:]
        return Inside(str(self.root), folder, name)

    def folder(self, name: str) -> Inside:
        """Where a folder of the store lies; without a name, the store."""
        return Inside(str(self.root), name, "")

    def make(self, *folders: str) -> None:
        """Make the folder and these inside of it, durably."""
        missing = [self.root]
        while not self._is_folder(str(missing[-1].parent)):
            missing.append(missing[-1].parent)
        for folder in (*reversed(missing), *(self.root / name for name in folders)):
            try:
                self.system.make_folder(str(folder))
            except FileExistsError:
                # Of the store itself, what is above may be a link, and what is below may not.
                is_own = folder.parent == self.root and folder.name in folders
                if not self._is_folder(self.folder(folder.name) if is_own else str(folder)):
                    raise InvalidArgument(
                        f"{folder} is a file, and a folder is needed: name another place"
                    ) from None
        # Also what is there: a run that was killed may have made it, and not have made it durable.
        for folder in (self.root, *self.root.parents):
            with contextlib.suppress(PermissionError):
                self._sync_path(str(folder))

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted; none where there is no folder."""
        try:
            return sorted(self.system.names(self.folder(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def create(self, name: str) -> "LocalSink":
        """Begin a file."""
        return LocalSink(self, name)

    def is_shared(self, name: str) -> bool:
        """Whether the same file is elsewhere too."""
        return self._status(name).st_nlink > 1

    def link(self, other: "LocalPlace", name: str) -> bool:
        """Have a durable file of another folder here too, by the same name; False if it cannot."""
        other._status(name)
        try:
            self.system.link(other.path(name), self.path(name))
        except OSError as error:
            if error.errno not in _UNLINKABLE:
                raise
            return False
        return True

    def read(self, name: str, most_bytes: int) -> bytes:
        """A whole small file."""
        size = self.size(name)
        if size > most_bytes:
            raise CorruptData(f"{name} has {size} bytes, more than such a file ever has")
        out = bytearray(size)
        self.read_into(name, 0, memoryview(out))
        return bytes(out)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[ReadInto]:
        """What fills a buffer from a place in a file, many times."""
        handle = self._open_plain(name)

        def read_into(offset: int, out: memoryview) -> None:
            done = 0
            while done < len(out):
                count = self.system.read_into(handle, out[done:], offset + done)
                if count == 0:
                    raise CorruptData(
                        f"{name} ends after {offset + done} bytes, and {len(out) - done} more are "
                        "needed: it was cut short"
                    )
                done += count

        try:
            yield read_into
        finally:
            self.system.close(handle)

    def read_into(self, name: str, offset: int, out: memoryview) -> None:
        """Fill a buffer from a place in a file."""
        with self.opened(name) as read_into:
            read_into(offset, out)

    def size(self, name: str) -> int:
        """In bytes."""
        return self._status(name).st_size

    def sizes(self, folder: str, names: Iterable[str]) -> dict[str, int]:
        """Of those of these files that are there; what cannot be looked at counts as gone."""
        found: dict[str, int] = {}
        for name in names:
            with contextlib.suppress(CorruptData, OSError):
                found[name] = self.size(f"{folder}/{name}")
        return found

    def remove(self, name: str) -> None:
        """Remove a file; that it is not there is no error."""
        with contextlib.suppress(FileNotFoundError):
            self.system.remove(self.path(name))

    def remove_all(self, names: Iterable[str]) -> None:
        """Remove several."""
        for name in names:
            self.remove(name)

    def abort_uploads(self, is_ours: Callable[[str], bool]) -> int:
        """Files are not uploaded."""
        del is_ours
        return 0

    def claim(self) -> None:
        """Locks say who writes."""

    def check_claim(self) -> None:
        """Locks say who writes."""

    def release(self) -> None:
        """Locks say who writes."""

    def is_claimed(self) -> bool:
        """Locks say who writes."""
        return False

    def sync(self, folder: str) -> None:
        """Make what was created, renamed and removed in a folder durable."""
        self._sync_path(self.folder(folder))

    @contextlib.contextmanager
    def lock(self, name: str, *, shared: bool = False) -> Iterator[bool]:
        """Hold a lock until the end of the block, or until the process dies."""
        flags = os.O_RDWR | os.O_CREAT
        try:
            handle = self.system.open(self.path(name), flags | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise CorruptData(
                    f"{name} is no ordinary file, and a lock has to be one"
                ) from error
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM) or not shared:
                raise
            # Nobody removes anything where nothing can be written.
            yield True
            return
        held_locks.add(handle)
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            try:
                self.system.lock(handle, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                    raise
                # A file system without locks, where the user has to see to it.
            yield True
        finally:
            if (
                handle in held_locks
            ):  # else this is a forked process, in which the number is another's
                held_locks.discard(handle)
                self.system.close(handle)

    def _is_folder(self, path: str) -> bool:
        try:
            handle = self.system.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except PermissionError:  # it is there, and not ours to look into
            return True
        self.system.close(handle)
        return True

    def _status(self, name: str) -> os.stat_result:
        status = self.system.status(self.path(name))
        if not stat.S_ISREG(status.st_mode):
            raise CorruptData(f"{name} is no ordinary file, and a store has none but such")
        return status

    def _open_plain(self, name: str) -> int:
        self._status(name)
        # Should it have become a pipe in the meantime, opening it does not wait for a writer.
        return self.system.open(self.path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)

    def _sync_path(self, path: str) -> None:
        handle = self.system.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.system.sync(handle)
        finally:
            self.system.close(handle)


class LocalSink:
    """Writes aside and renames; past the page cache where the file system lets it.

    Large pieces that lie on page boundaries go to the disk from where they are. What is smaller
    is gathered first.
    """

    def __init__(self, place: LocalPlace, name: str) -> None:
        self._place, self._system, self._name = place, place.system, name
        self._aside = place.path(name + ASIDE)
        self.position = 0
        self._stage = mmap.mmap(-1, _STAGE_BYTES)
        self._staged = np.frombuffer(self._stage, np.uint8)
        self._fill = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._is_direct = hasattr(os, "O_DIRECT")
        self._place.remove(name + ASIDE)  # of an attempt that was killed
        try:
            self._handle = self._system.open(self._aside, flags | getattr(os, "O_DIRECT", 0))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._is_direct = False
            self._place.remove(name + ASIDE)  # some file systems refuse after having made it
            self._handle = self._system.open(self._aside, flags)

    def append(self, data: memoryview) -> int:
        """Add bytes; return where they begin."""
        start = self.position
        source = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
        done = 0
        while done < len(source):
            is_aligned = (source.ctypes.data + done) % _BLOCK_BYTES == 0
            whole = (len(source) - done) // _BLOCK_BYTES * _BLOCK_BYTES
            if is_aligned and whole >= _STAGE_BYTES // 8 and self._fill % _BLOCK_BYTES == 0:
                self._flush()
                count = min(whole, _STAGE_BYTES)
                self._write(data[done : done + count])
            else:
                count = min(len(source) - done, _STAGE_BYTES - self._fill)
                self._staged[self._fill : self._fill + count] = source[done : done + count]
                self._fill += count
                if self._fill == _STAGE_BYTES:
                    self._flush()
            done += count
        self.position += len(source)
        return start

    def align(self) -> None:
        """Fill up to the next block, so that what follows can be written from where it lies."""
        rest = -self.position % _BLOCK_BYTES
        self.append(memoryview(bytes(rest)))

    def commit(self) -> int:
        """Make it durable, then visible under its name; return its size in bytes."""
        if self._is_direct and self.position % _BLOCK_BYTES:
            # The end of a file is seldom that of a block.
            self._end_direct()
        self._flush()
        # A failed fsync is not tried again: what it was to write is gone, and the next call
        # would say that all is well.
        self._system.sync(self._handle)
        self._close()
        self._system.rename(self._aside, self._place.path(self._name))
        self._place.sync(self._name.rpartition("/")[0])
        return self.position

    def abandon(self) -> None:
        """Remove what was written, as far as that is possible."""
        with contextlib.suppress(OSError):
            self._close()
        with contextlib.suppress(OSError):
            self._place.remove(self._name + ASIDE)

    def _close(self) -> None:
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            self._system.close(handle)

    def _flush(self) -> None:
        if self._fill:
            self._write(memoryview(self._stage)[: self._fill])
            self._fill = 0

    def _end_direct(self) -> None:
        whole = self._fill // _BLOCK_BYTES * _BLOCK_BYTES
        rest = self._staged[whole : self._fill].copy()
        self._fill = whole
        self._flush()
        self._use_cache()
        self._staged[: len(rest)] = rest
        self._fill = len(rest)

    def _use_cache(self) -> None:
        self._is_direct = False
        self._system.flags(self._handle, 0)

    def _write(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            try:
                count = self._system.write(self._handle, data[done:])
            except OSError as error:
                if error.errno != errno.EINVAL or not self._is_direct:
                    raise
                count = 0
            if count == 0 or (self._is_direct and count % _BLOCK_BYTES):
                # The file system does not take it, or took a part of a block: go on through the
                # cache.
                if not self._is_direct:
                    raise OSError(errno.EIO, "a write wrote nothing")
                self._use_cache()
            done += count
