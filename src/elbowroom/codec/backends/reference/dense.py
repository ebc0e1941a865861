"""A chunk of the dense codec: header, tables, states and words, escapes, failures."""

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec.backends.reference import levels
from elbowroom.codec.backends.reference import tables as table
from elbowroom.codec.backends.reference.codes import decode_codes, encode_codes
from elbowroom.codec.backends.reference.failed import check_failed_count, pack_failed, place_failed
from elbowroom.codec.backends.reference.model import Codes, Lanes, Walk, context_count
from elbowroom.codec.backends.reference.numbers import NUMPY_TYPES, Items, nearest_int, wrap
from elbowroom.codec.backends.reference.rans import Decoder, Encoder
from elbowroom.codec.recipe import Model, Recipe
from elbowroom.errors import CorruptData

_HEADER = struct.Struct("<BBHIIIII")
_POSITION = "<u4"
_POSITION_BYTES = 4
_PASSES = 3
_LANE_COUNTS = (64, 16)
# A chunk that is shorter than this with 64 lanes is tried with 16.
_SHORT_BYTES = 8192


def _code_count(recipe: Recipe, item_count: int) -> int:
    return item_count * (2 if recipe.has_word_planes else 1)


def _expected(recipe: Recipe, p: NDArray[Any]) -> NDArray[np.int64]:
    """What a value is the distance of its code from."""
    return np.zeros(len(p), dtype=np.int64) if recipe.method == Model.CODE else nearest_int(p)


def _values_of(recipe: Recipe, lanes: Lanes, codes: Codes) -> NDArray[np.int32]:
    walk = Walk(recipe, lanes)
    values = np.empty_like(codes)
    for t in range(lanes.length):
        values[t] = wrap(codes[t] - _expected(recipe, walk.predict(codes, t)))
    return values


def _contexts_of(
    recipe: Recipe, lanes: Lanes, codes: Codes, activity: NDArray[np.int64]
) -> NDArray[np.int64]:
    walk = Walk(recipe, lanes)
    contexts = np.empty(codes.shape, dtype=np.int64)
    for t in range(lanes.length):
        contexts[t] = walk.context(walk.predict(codes, t), t)
        walk.update(activity[t], t)
    return contexts


def encode_chunk(recipe: Recipe, items: Items, first: int) -> bytes:
    """The bytes of one chunk, whose first item has index `first` in the array."""
    chunk = _encode_in_lanes(recipe, items, first, 0)
    if len(chunk) >= _SHORT_BYTES:
        return chunk
    return min(chunk, _encode_in_lanes(recipe, items, first, 1), key=len)


def _encode_in_lanes(recipe: Recipe, items: Items, first: int, lanes_index: int) -> bytes:
    n = _code_count(recipe, len(items))
    lanes = Lanes(recipe, n, _LANE_COUNTS[lanes_index])
    all_codes, positions = encode_codes(recipe, items, first, lanes.length)
    codes = lanes.cut(all_codes)
    values = _values_of(recipe, lanes, codes)
    symbols, widths, extra, activity = levels.tokens_of(values, recipe.shift)
    contexts = _contexts_of(recipe, lanes, codes, activity)
    precision, tables = table.build_tables(n, contexts, symbols, context_count(recipe))
    encoder = Encoder(tables, precision, lanes.count)
    for t in reversed(range(lanes.length)):
        encoder.put(contexts[t], symbols[t], widths[t], extra[t])
    states, words = encoder.finish()
    escapes = values[symbols == levels.ESCAPE]
    packed = table.pack_tables(tables)
    header = _HEADER.pack(
        precision,
        lanes_index,
        0,
        lanes.length,
        len(escapes),
        len(positions),
        len(words),
        len(packed),
    )
    return b"".join(
        [
            header,
            packed,
            states.astype("<u4").tobytes(),
            words.astype("<u2").tobytes(),
            escapes.astype("<i4").tobytes(),
            pack_failed(items, positions, _POSITION),
        ]
    )


class _Parts(NamedTuple):
    precision: int
    lanes: Lanes
    failed_count: int
    tables: bytes
    states: bytes
    words: bytes
    escapes: bytes
    failed: bytes


def _split(recipe: Recipe, chunk: bytes, item_count: int) -> _Parts:
    """The chunk's parts, once the header's numbers agree with one another and with its length."""
    if len(chunk) < _HEADER.size:
        raise CorruptData(f"size: {len(chunk)} bytes, {_HEADER.size} for the header alone")
    precision, index, zero, length, escapes, failed, words, table_bytes = _HEADER.unpack_from(chunk)
    n = _code_count(recipe, item_count)
    if precision not in ((11,) if n < 32768 else (11, 12)):
        raise CorruptData(f"precision: {precision} for {n} codes")
    if index >= len(_LANE_COUNTS):
        raise CorruptData(f"lanes: {index} is not known")
    if zero:
        raise CorruptData("reserved: expected 0")
    lanes = Lanes(recipe, n, _LANE_COUNTS[index])
    if length != lanes.length:
        raise CorruptData(f"lane length: {length}, expected {lanes.length}")
    for name, count, most in (
        ("escapes", escapes, lanes.count * length),
        ("words", words, _PASSES * lanes.count * length),
    ):
        if count > most:
            raise CorruptData(f"{name}: {count}, at most {most} can be")
    check_failed_count(recipe, failed, item_count)
    sizes = [
        table_bytes,
        4 * lanes.count,
        2 * words,
        4 * escapes,
        failed * (_POSITION_BYTES + recipe.item_bytes),
    ]
    total = _HEADER.size + sum(sizes)
    if len(chunk) != total:
        raise CorruptData(f"size: {len(chunk)} bytes, {total} expected from the header")
    parts, at = [], _HEADER.size
    for size in sizes:
        parts.append(chunk[at : at + size])
        at += size
    return _Parts(precision, lanes, failed, *parts)


def decode_chunk(recipe: Recipe, chunk: bytes, first: int, item_count: int) -> Items:
    """The items of one chunk; CorruptData if its bytes are not a chunk of `item_count` items."""
    n = _code_count(recipe, item_count)
    parts = _split(recipe, chunk, item_count)
    lanes = parts.lanes
    decoder = Decoder(
        table.unpack_tables(parts.tables, context_count(recipe), parts.precision),
        parts.precision,
        np.frombuffer(parts.states, dtype="<u4"),
        np.frombuffer(parts.words, dtype="<u2"),
    )
    reader = levels.Reader(np.frombuffer(parts.escapes, dtype="<i4"), recipe.shift)
    codes = np.zeros((lanes.length, lanes.count), dtype=np.int32)
    walk = Walk(recipe, lanes)
    for t in range(lanes.length):
        p = walk.predict(codes, t)
        symbols = decoder.take_symbols(walk.context(p, t))
        extra = decoder.take_extra(levels.extra_widths(symbols, recipe.shift))
        values, activity = reader.values_of(symbols, extra)
        codes[t] = wrap(_expected(recipe, p) + values)
        walk.update(activity, t)
    decoder.finish()
    reader.finish()
    flat = codes.T.ravel()
    if flat[n:].any():
        raise CorruptData("codes: expected 0 beyond the last item")
    items = decode_codes(recipe, flat[:n], first).astype(NUMPY_TYPES[recipe.dtype], copy=True)
    place_failed(recipe, items, parts.failed, parts.failed_count, _POSITION)
    return items
