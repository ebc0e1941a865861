"""A chunk of the block codec: failure count, headers, planes of codes or residuals, failures."""

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec.backends.reference import planes
from elbowroom.codec.backends.reference.codes import decode_codes, encode_codes
from elbowroom.codec.backends.reference.failed import check_failed_count, pack_failed, place_failed
from elbowroom.codec.backends.reference.numbers import NUMPY_TYPES, Items, wrap
from elbowroom.codec.backends.reference.planes import BLOCK_CODES, RAW_HEADER, Shape
from elbowroom.codec.backends.reference.predict import predict, restore
from elbowroom.codec.recipe import Dtype, Predictor, Recipe, Rule
from elbowroom.errors import CorruptData

_POSITION = "<u2"
_POSITION_BYTES = 2


def _may_be_raw(recipe: Recipe) -> bool:
    return (
        recipe.rule != Rule.EXACT and recipe.dtype != Dtype.F64 and recipe.method == Predictor.NONE
    )


def _spans(n: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each block of n codes."""
    for begin in range(0, n, BLOCK_CODES):
        yield begin, min(n, begin + BLOCK_CODES)


def encode_chunk(recipe: Recipe, items: Items, first: int) -> bytes:
    """The bytes of one chunk, whose first item has index `first` in the array."""
    codes, positions = encode_codes(recipe, items, first, len(items))
    values = predict(recipe, codes, first)
    failed = np.zeros(len(items), dtype=bool)
    failed[positions] = True
    headers, payloads = bytearray(), []
    for begin, end in _spans(len(values)):
        block = np.pad(values[begin:end], (0, BLOCK_CODES - (end - begin)), mode="edge")
        header = planes.choose_header(block)
        payload = planes.pack(header, block)
        if _may_be_raw(recipe):
            listed = int(failed[begin:end].sum()) * (_POSITION_BYTES + recipe.item_bytes)
            if len(payload) + listed >= (end - begin) * recipe.item_bytes:
                header = RAW_HEADER
                payload = items[begin:end].tobytes()
                failed[begin:end] = False
        headers.append(header)
        payloads.append(payload)
    headers.extend(bytes(-len(headers) % 4))
    positions = np.flatnonzero(failed)
    tail = pack_failed(items, positions, _POSITION)
    return b"".join([struct.pack("<I", len(positions)), headers, *payloads, tail])


def _read_sizes(recipe: Recipe, chunk: bytes, item_count: int, n: int) -> tuple[int, list[int]]:
    """Number of failed items and every block's bytes, once they agree with the chunk's length."""
    blocks = -(-n // BLOCK_CODES)
    filled = -(-blocks // 4) * 4
    if len(chunk) < 4 + filled:
        raise CorruptData(f"size: {len(chunk)} bytes, {4 + filled} for the headers alone")
    failed_count = struct.unpack_from("<I", chunk)[0]
    check_failed_count(recipe, failed_count, item_count)
    headers = chunk[4 : 4 + filled]
    if any(headers[blocks:]):
        raise CorruptData("headers: not filled with zeros")
    sizes = []
    for header, (begin, end) in zip(headers[:blocks], _spans(n), strict=True):
        shape, width = planes.split_header(header)
        if shape == Shape.RAW:
            if header != RAW_HEADER or not _may_be_raw(recipe):
                raise CorruptData(f"headers: {header:#x} at code {begin}")
            sizes.append((end - begin) * recipe.item_bytes)
        elif width > 32:
            raise CorruptData(f"headers: {width} planes at code {begin}, at most 32 can be")
        else:
            sizes.append(planes.payload_bytes(header))
    total = 4 + filled + sum(sizes) + failed_count * (_POSITION_BYTES + recipe.item_bytes)
    if len(chunk) != total:
        raise CorruptData(f"size: {len(chunk)} bytes, {total} expected from the headers")
    return failed_count, sizes


def decode_chunk(recipe: Recipe, chunk: bytes, first: int, item_count: int) -> Items:
    """The items of one chunk; CorruptData if its bytes are not a chunk of `item_count` items."""
    n = item_count * (2 if recipe.has_word_planes else 1)
    failed_count, sizes = _read_sizes(recipe, chunk, item_count, n)
    at = 4 + -(-len(sizes) // 4) * 4
    values = np.zeros(n, dtype=np.int32)
    raw: list[tuple[int, int, bytes]] = []
    for header, size, (begin, end) in zip(chunk[4:], sizes, _spans(n), strict=False):
        payload = chunk[at : at + size]
        at += size
        if header == RAW_HEADER:
            raw.append((begin, end, payload))
        else:
            values[begin:end] = wrap(planes.unpack(header, payload))[: end - begin]
    items = _items_of(recipe, restore(recipe, values, first), first)
    for begin, end, payload in raw:
        items[begin:end] = np.frombuffer(payload, dtype=items.dtype)
    place_failed(recipe, items, chunk[at:], failed_count, _POSITION)
    return items


def _items_of(recipe: Recipe, codes: NDArray[np.int32], first: int) -> Items:
    return decode_codes(recipe, codes, first).astype(NUMPY_TYPES[recipe.dtype], copy=True)
