"""A file for what memory has no room for: written in forward, read in backward."""

import os
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from elbowroom.errors import CorruptData

# Until it is measured: a plain disk, in bytes a second.
_USUAL_SPEED = 3e8

# File systems whose files lie in memory.
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


@dataclass(slots=True, weakref_slot=True, eq=False)
class Slot:
    """Some bytes on the shelf, until nobody asks for them any more."""

    shelf: "Shelf"
    offset: int
    nbytes: int
    _end: "weakref.finalize[[], Slot]" = field(init=False)

    def __post_init__(self) -> None:
        self._end = weakref.finalize(self, self.shelf._leave)
        self._end.atexit = False

    def read(self) -> bytearray:
        """The bytes."""
        return self.shelf._read(self.offset, self.nbytes)


class Shelf:
    """A file without a name: it goes with the process, however that ends.

    Pages of it that the system holds are not the process's, and go when memory is short.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._file: int | None = None
        self._closing: weakref.finalize[[int], Shelf] | None = None
        self._lock = threading.Lock()
        self._end = 0
        self._slots = 0
        self._moved_bytes = 0
        self._moved_s = 0.0
        self.trouble = ""
        """Why nothing can be put here, in words; empty while it can."""

    @property
    def bytes_per_s(self) -> float:
        """How fast bytes come and go, as measured so far."""
        if self._moved_bytes < 1 << 22:
            return _USUAL_SPEED
        return self._moved_bytes / max(self._moved_s, 1e-9)

    def put(self, pieces: Iterable[memoryview]) -> Slot | None:
        """Write the pieces one after another; None where the disk does not take them."""
        start = time.perf_counter()
        with self._lock:
            if self.trouble:
                return None
            try:
                number, offset = self._open(), self._end
                end = offset
                for piece in pieces:
                    end = _write(number, piece, end)
            except OSError as error:
                self.trouble = f"the disk takes no more: {error.strerror or error}"
                return None
            self._end = end
            self._slots += 1
            self._moved_bytes += end - offset
            self._moved_s += time.perf_counter() - start
        return Slot(self, offset, end - offset)

    def close(self) -> None:
        """Give the disk back; what is still on the shelf is lost."""
        with self._lock:
            if self._closing is not None:
                self._closing()
            self._file = self._closing = None

    def _open(self) -> int:
        if self._file is None:
            folder = self._folder or disk_folder()
            if folder is None:
                raise OSError(0, "no folder for temporary files lies on a disk, set TMPDIR")
            self._file, name = tempfile.mkstemp(prefix="elbowroom-", dir=folder)
            os.unlink(name)
            self._closing = weakref.finalize(self, os.close, self._file)
        return self._file

    def _read(self, offset: int, nbytes: int) -> bytearray:
        start = time.perf_counter()
        data = bytearray(nbytes)
        view, done = memoryview(data), 0
        while done < nbytes:
            if self._file is None:
                raise CorruptData("a tensor was put on disk and its file was closed since")
            count = os.preadv(self._file, [view[done:]], offset + done)
            if count == 0:
                raise CorruptData(
                    f"a tensor of {nbytes} bytes was put on disk and {done} came back: the "
                    "temporary file was cut by another program; run the step again"
                )
            done += count
        with self._lock:
            self._moved_bytes += nbytes
            self._moved_s += time.perf_counter() - start
        return data

    def _leave(self) -> None:
        with self._lock:
            self._slots -= 1
            if self._slots == 0:
                # Nobody reads any more: begin again at the start.
                self._end = 0


def disk_folder() -> Path | None:
    """A folder for temporary files that lies on a disk and not in memory."""
    for folder in (Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()):
        if os.access(folder, os.W_OK) and _file_system(folder) not in _IN_MEMORY:
            return folder
    return None


def _file_system(folder: Path) -> str:
    """Its type, as the kernel names it; empty where that cannot be known."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    where, best, kind = folder.resolve(), -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = Path(left.split()[4].replace("\\040", " "))
        if where.is_relative_to(mount) and len(mount.parts) > best:
            best, kind = len(mount.parts), right.split()[0]
    return kind


def _write(number: int, piece: memoryview, offset: int) -> int:
    view = piece.cast("B") if piece.nbytes else piece
    done = 0
    while done < view.nbytes:
        done += os.pwrite(number, view[done:], offset + done)
    return offset + done
