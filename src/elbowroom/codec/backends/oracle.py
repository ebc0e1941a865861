"""The reference implementation behind the seam: slow, and the measure of the others."""

import ctypes

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec.backends import reference
from elbowroom.codec.backends.reference.checksum import checksum
from elbowroom.codec.backends.reference.numbers import NUMPY_TYPES, Items
from elbowroom.codec.buffers import Segment
from elbowroom.codec.recipe import Recipe
from elbowroom.errors import CorruptData


def encode(
    recipe: bytes, pointer: int, items: int, threads: int
) -> tuple[tuple[Segment, ...], NDArray[np.uint32]]:
    """The chunks of some items, as one segment."""
    del threads
    parsed = Recipe.unpack(recipe)
    chunks = reference.encode(parsed, _items_at(parsed, pointer, items))
    directory = np.array([(len(chunk), checksum(chunk)) for chunk in chunks], np.uint32)
    data = np.frombuffer(b"".join(chunks), np.uint8) if chunks else np.empty(0, np.uint8)
    return (Segment(data, 0, len(chunks)),) if chunks else (), directory.reshape(-1, 2)


def decode(
    recipe: bytes,
    segments: tuple[Segment, ...],
    directory: NDArray[np.uint32],
    items: int,
    pointer: int,
    threads: int,
) -> None:
    """Write the items to the pointer; CorruptData names the first chunk that is damaged."""
    del threads
    parsed = Recipe.unpack(recipe)
    payload = b"".join(data.data for data, _, _ in segments)
    chunks: list[bytes] = []
    start = 0
    for index, (size, expected) in enumerate(directory.tolist()):
        chunk = payload[start : start + size]
        if checksum(chunk) != expected:
            raise CorruptData(
                f"the payload is damaged in chunk {index} of {len(directory)}: "
                "its checksum does not match"
            )
        chunks.append(chunk)
        start += size
    _items_at(parsed, pointer, items)[:] = reference.decode(parsed, chunks, items)


def _items_at(recipe: Recipe, pointer: int, items: int) -> Items:
    if items == 0:
        return np.empty(0, NUMPY_TYPES[recipe.dtype])
    memory = (ctypes.c_char * (items * recipe.item_bytes)).from_address(pointer)
    return np.frombuffer(memoryview(memory), NUMPY_TYPES[recipe.dtype])
