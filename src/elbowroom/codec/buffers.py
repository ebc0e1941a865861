"""The pieces of memory that a blob consists of, is read from and is written to."""

import os
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
