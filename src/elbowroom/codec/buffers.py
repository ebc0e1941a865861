"""The pieces of memory that a blob consists of, is read from and is written to."""

import ctypes
import errno
import mmap
import os
import sys
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from elbowroom.errors import InvalidArgument

Bytes = NDArray[np.uint8]


class Segment(NamedTuple):
    """Consecutive chunks, one after another in memory."""

    data: Bytes
    first_chunk: int
    end_chunk: int


class Writable(Protocol):
    """A binary file, or what behaves like one."""

    def write(self, data: memoryview, /) -> int | None:
        """Write some of the bytes and say how many; None means all."""
        ...


# From here on a result gets pages of its own.
LASTING_BYTES = 1 << 15


class Reserve:
    """Memory for a result whose size is known only when it is there; what it needs not goes back.

    A result often outlives what is around it. In pages of its own it leaves no holes in the heap,
    through which a process would stay as large as if nothing had been encoded.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._pages = self._array = None
        if nbytes >= LASTING_BYTES and sys.platform == "linux":
            self._pages = _take_pages(nbytes)
        else:
            self._array = np.empty(nbytes, np.uint8)

    @property
    def address(self) -> int:
        """Where it begins."""
        memory: Any = self._array if self._pages is None else self._pages
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def keep(self, nbytes: int) -> Bytes:
        """The first bytes of it; the rest is given back."""
        if self._pages is not None:
            if nbytes < self.nbytes:
                self._pages.resize(max(1, nbytes))
            return np.frombuffer(self._pages, np.uint8, nbytes)
        assert self._array is not None
        if nbytes < self.nbytes:
            # Shrinking in place gives the untouched rest back to the system.
            self._array.resize(nbytes, refcheck=False)
        return self._array


def _take_pages(nbytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        # As numpy says it: an OSError would be looked for on a disk.
        raise MemoryError(f"Unable to allocate memory: {nbytes} bytes for a result") from None


def bytes_of(buffer: Any) -> Bytes:
    """A view of anything that holds bytes one after another."""
    try:
        view = memoryview(buffer)
    except TypeError:
        remedy = "pass bytes, bytearray, memoryview, mmap or a numpy array of uint8"
        if isinstance(buffer, str | os.PathLike):
            remedy = "pass what the file holds, pathlib.Path(name).read_bytes()"
        raise InvalidArgument(
            f"a blob's bytes were expected, got {type(buffer).__name__}: {remedy}"
        ) from None
    if not view.c_contiguous:
        raise InvalidArgument(
            "a blob's bytes must lie one after another, got a strided buffer: pass a copy"
        )
    # An empty buffer can be neither cast nor read by numpy.
    return np.frombuffer(view.cast("B") if view.nbytes else b"\0", np.uint8)[: view.nbytes]
