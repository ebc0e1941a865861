"""The reference backend: docs/format.md in plain numpy, slow and obvious.

The oracle of every other backend. Items are one-dimensional and in memory order; bf16 items are
their patterns as uint16.
"""

import numpy as np

from elbowroom.codec.backends.reference import block, dense, sparse
from elbowroom.codec.backends.reference.numbers import NUMPY_TYPES, Items
from elbowroom.codec.recipe import Codec, Dtype, Model, Recipe
from elbowroom.errors import CorruptData, InvalidArgument


def encode(recipe: Recipe, items: Items) -> list[bytes]:
    """The chunks of some items, in order."""
    kind = NUMPY_TYPES[recipe.dtype]
    if items.ndim != 1 or items.dtype != kind:
        raise InvalidArgument(
            f"expected {kind} items in one dimension, got {items.dtype} in {items.ndim}"
        )
    fault = recipe.fault()
    if fault:
        raise InvalidArgument(f"the format forbids this recipe: {fault}")
    items = np.ascontiguousarray(items)
    length = recipe.chunk_items
    return [
        _encode_chunk(recipe, items[first : first + length], first)
        for first in range(0, len(items), length)
    ]


def decode(recipe: Recipe, chunks: list[bytes], item_count: int) -> Items:
    """The items in some chunks; CorruptData names the chunk and the field that cannot be."""
    fault = recipe.fault()
    if fault:
        raise CorruptData(f"the format forbids this recipe: {fault}")
    if item_count < 0 or len(chunks) != recipe.chunk_count(item_count):
        raise CorruptData(f"{item_count} items do not make {len(chunks)} chunks")
    length = recipe.chunk_items
    parts: list[Items] = []
    for index, chunk in enumerate(chunks):
        first = index * length
        try:
            parts.append(_decode_chunk(recipe, chunk, first, min(length, item_count - first)))
        except CorruptData as error:
            raise CorruptData(f"the payload is damaged in chunk {index}: {error}") from None
    return np.concatenate([*parts, np.zeros(0, dtype=NUMPY_TYPES[recipe.dtype])])


def _encode_chunk(recipe: Recipe, items: Items, first: int) -> bytes:
    if recipe.codec == Codec.BLOCK:
        return block.encode_chunk(recipe, items, first)
    if recipe.codec == Codec.DENSE:
        payload = sparse if recipe.method == Model.SPARSE else dense
        return payload.encode_chunk(recipe, items, first)
    if recipe.dtype == Dtype.BOOL:
        return (items.view(np.uint8) != 0).tobytes()
    return items.tobytes()


def _decode_chunk(recipe: Recipe, chunk: bytes, first: int, item_count: int) -> Items:
    if recipe.codec == Codec.BLOCK:
        return block.decode_chunk(recipe, chunk, first, item_count)
    if recipe.codec == Codec.DENSE:
        payload = sparse if recipe.method == Model.SPARSE else dense
        return payload.decode_chunk(recipe, chunk, first, item_count)
    if len(chunk) != item_count * recipe.item_bytes:
        raise CorruptData(f"size: {len(chunk)} bytes, expected {item_count * recipe.item_bytes}")
    if recipe.dtype == Dtype.BOOL:
        # A bool other than 0 and 1 is undefined behaviour in the host.
        return (np.frombuffer(chunk, dtype=np.uint8) & 1).view(np.bool_)
    return np.frombuffer(chunk, dtype=NUMPY_TYPES[recipe.dtype])
