"""The compiled kernels behind the seam: memory for their results, and their verdicts as errors."""

import ctypes
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elbowroom import _native
from elbowroom.codec.buffers import Reserve, Segment
from elbowroom.codec.layout import ITEM_BYTES
from elbowroom.codec.recipe import Codec
from elbowroom.errors import CorruptData

# Reserving the worst case of a large array at once could exceed what the system lends, so that
# it is encoded in rounds of one segment a thread, each of at most this many bytes of items.
SEGMENT_BYTES = 64 << 20

# What does not compress may grow, and is then stored in another way. How far a result may outgrow
# its items before that is known: a quarter of them, or this.
SPARE_BYTES = 16 << 20

_VERDICTS = {
    1: "its checksum does not match",
    2: "its bytes contradict themselves",
    4: "the recipe is not one that can be decoded",
}


def encode(
    recipe: bytes, pointer: int, items: int, threads: int
) -> tuple[tuple[Segment, ...], NDArray[np.uint32]]:
    """The chunks of some items: at most one segment for a thread in each round.

    A round is no larger than the result has room for: the first is expected to take its worst
    case, the others twice what those before took; but every thread has a chunk to work on. Once
    the result has outgrown the items the rest is left out: no caller keeps it.
    """
    if items == 0:
        return (), np.empty((0, 2), np.uint32)
    length = _native.chunk_items(recipe)
    chunks = -(-items // length)
    directory = np.empty((chunks, 2), np.uint32)
    target = _address(directory)
    if chunks == 1:
        memory = Reserve(_native.chunk_capacity(recipe, items))
        task = [(memory.address, memory.nbytes, 0, 1)]
        (used,) = _native.encode(recipe, pointer, items, task, target, 1)
        return (Segment(memory.keep(used), 0, 1),), directory
    width = min(threads, chunks)
    chunk_nbytes = length * ITEM_BYTES[recipe[1]]
    most = width * max(1, SEGMENT_BYTES // chunk_nbytes)
    full = _native.chunk_capacity(recipe, length)
    last = _native.chunk_capacity(recipe, items - (chunks - 1) * length)
    raw_nbytes = items * ITEM_BYTES[recipe[1]]
    room = raw_nbytes + max(raw_nbytes // 4, SPARE_BYTES)
    segments: list[Segment] = []
    start = total = 0
    # Blocks are hardly ever longer than their items: only dense is tried on a part first.
    expected = full if recipe[0] == Codec.DENSE else chunk_nbytes
    while start < chunks and total <= raw_nbytes:
        left = chunks - start
        even = -(-left // -(-left // most))
        count = min(even, max((room - total) // expected, width))
        parts = min(width, count)
        edges = [start + count * part // parts for part in range(parts + 1)]
        bounds = list(pairwise(edges))
        fresh = [
            Reserve(full * (end - first) + (last - full) * (end == chunks)) for first, end in bounds
        ]
        tasks = [
            (memory.address, memory.nbytes, first, end)
            for memory, (first, end) in zip(fresh, bounds, strict=True)
        ]
        used = _native.encode(recipe, pointer, items, tasks, target, threads)
        for memory, (first, end), size in zip(fresh, bounds, used, strict=True):
            segments.append(Segment(memory.keep(size), first, end))
            total += size
        start += count
        expected = min(full, 2 * total // start + 1)
    return tuple(segments), directory


def decode(
    recipe: bytes,
    segments: tuple[Segment, ...],
    directory: NDArray[np.uint32],
    items: int,
    pointer: int,
    threads: int,
) -> None:
    """Write the items to the pointer; CorruptData names the first chunk that is damaged."""
    if items == 0:
        return
    tasks = [
        (data.ctypes.data, data.size, first_chunk, end_chunk)
        for data, first_chunk, end_chunk in segments
    ]
    verdict, chunk = _native.decode(recipe, tasks, directory.ctypes.data, items, pointer, threads)
    if verdict == 0:
        return
    if verdict == 3:
        raise MemoryError("decoding found no memory for its workspace")
    raise CorruptData(
        f"the payload is damaged in chunk {chunk} of {len(directory)}: {_VERDICTS[verdict]}"
    )


def _address(array: Any) -> int:
    """Where a fresh array lies; several times faster than its `ctypes.data`."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))
