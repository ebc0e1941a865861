"""Chunks of the dense codec: bytes by hand, and bytes that are no chunk."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.codec.backends.reference.dense import decode_chunk, encode_chunk
from elbowroom.codec.recipe import Codec, Dtype, Model, Recipe, Rule
from elbowroom.errors import CorruptData

FLAT = Recipe(codec=Codec.DENSE, dtype=Dtype.U8, method=Model.FLAT)
WHOLE = Recipe(
    codec=Codec.DENSE,
    dtype=Dtype.F32,
    rule=Rule.PLAIN,
    step=1.0,
    inverse=1.0,
    limit=0.5,
    method=Model.FLAT,
)


def header_of(length: int, escapes: int, failed: int, words: int, table_bytes: int) -> bytes:
    """The header of a chunk in 16 lanes."""
    return struct.pack("<BBHIIIII", 11, 1, 0, length, escapes, failed, words, table_bytes)


def test_a_chunk_of_one_zero() -> None:
    # 16 lanes of one step; symbol 128 has all of the 2048: len 12, eleven zeros below.
    tables = struct.pack("<QQ", 1, 128 | 128 << 8 | 12 << 16)
    expected = header_of(1, 0, 0, 0, 16) + tables + struct.pack("<I", 65536) * 16
    assert encode_chunk(FLAT, np.zeros(1, np.uint8), 0) == expected
    assert decode_chunk(FLAT, expected, 0, 1).tolist() == [0]


def test_a_chunk_of_one_five() -> None:
    # Counts 15 and 1 of 16: (2 x 15 x 2048 + 16) div 32 = 1920 and 128. 58 bits tell of symbols 128
    # to 133: 128: len 11, 1920 - 1024; four that do not occur; 133: len 8, 128 - 128.
    bits = 128 | 133 << 8 | 11 << 16 | (1920 - 1024) << 20 | 8 << 46
    tables = struct.pack("<QQ", 1, bits)
    # 65536 = 512 x 128, and 34 x 1920 + 256.
    states = [512 * 2048 + 1920] + [34 * 2048 + 256] * 15
    expected = header_of(1, 0, 0, 0, 16) + tables + struct.pack("<16I", *states)
    assert encode_chunk(FLAT, np.array([5], np.uint8), 0) == expected
    assert decode_chunk(FLAT, expected, 0, 1).tolist() == [5]


def test_escapes_and_failed_items_end_the_chunk() -> None:
    # Lanes of one: what fails has no item before it in its lane.
    items = np.array([100000.0, 7.0, np.inf, -8.0], np.float32)
    chunk = encode_chunk(WHOLE, items, 0)
    assert chunk[:16] == header_of(1, 1, 1, 0, 0)[:16]
    assert chunk[-12:] == struct.pack("<iIf", 100000, 2, np.inf)
    assert decode_chunk(WHOLE, chunk, 0, 4).tobytes() == items.tobytes()


def test_a_failed_item_takes_the_code_before_it_in_its_lane() -> None:
    recipe = replace(WHOLE, weights=(64, 0, 0, 0))
    # Two steps in each of 16 lanes, every code 3; then NaN at a lane's end, and at its start.
    items = np.full(32, 3.0, np.float32)
    plain = encode_chunk(recipe, items, 0)
    assert plain[1] == 1
    items[5] = np.nan
    assert encode_chunk(recipe, items, 0)[24:-8] == plain[24:]
    items[4] = np.nan
    assert encode_chunk(recipe, items, 0)[24:-16] != plain[24:]
    assert decode_chunk(recipe, encode_chunk(recipe, items, 0), 0, 32).tobytes() == items.tobytes()


def test_many_lanes_for_much_few_for_little() -> None:
    rng = np.random.default_rng(0)
    much = rng.integers(0, 256, 20000).astype(np.uint8)
    little = np.zeros(20000, np.uint8)
    for items, lanes in ((much, 0), (little, 1)):
        chunk = encode_chunk(FLAT, items, 0)
        assert (chunk[1], len(chunk) < 8192) == (lanes, lanes == 1)
        assert decode_chunk(FLAT, chunk, 0, 20000).tolist() == items.tolist()


def test_smooth_planes_take_few_bytes() -> None:
    # Every second difference is zero: only the planes' edges cost anything.
    columns, rows = 16, 8
    t = np.arange(64 * columns * rows)
    items = (3 * (t % columns) + 5 * (t // columns % rows)).astype(np.int32)
    recipe = Recipe(
        codec=Codec.DENSE,
        dtype=Dtype.I32,
        method=Model.BOTH,
        columns=columns,
        rows=rows,
        weights=(64, 64, -64, 0),
    )
    chunk = encode_chunk(recipe, items, 0)
    assert len(chunk) < len(items) // 4
    assert decode_chunk(recipe, chunk, 0, len(items)).tolist() == items.tolist()


ITEMS = np.random.default_rng(0).integers(0, 256, 301).astype(np.uint8)
CHUNK = encode_chunk(FLAT, ITEMS, 0)


def with_u32(at: int, value: int) -> bytes:
    return CHUNK[:at] + struct.pack("<I", value) + CHUNK[at + 4 :]


@pytest.mark.parametrize(
    ("field", "chunk"),
    [
        ("size", b""),
        ("size", CHUNK[:23]),
        ("size", CHUNK[:-1]),
        ("size", CHUNK + b"\0"),
        ("precision", b"\x0a" + CHUNK[1:]),
        ("precision", b"\x0c" + CHUNK[1:]),
        ("lanes", CHUNK[:1] + b"\x02" + CHUNK[2:]),
        ("lane length", CHUNK[:1] + b"\x00" + CHUNK[2:]),
        ("reserved", CHUNK[:3] + b"\x01" + CHUNK[4:]),
        ("lane length", with_u32(4, 20)),
        ("escapes", with_u32(8, 2**32 - 1)),
        ("failed", with_u32(12, 1)),
        ("words", with_u32(16, 2**32 - 1)),
        ("size", with_u32(20, 2**32 - 1)),
        ("size", with_u32(20, 8)),
        ("tables", with_u32(24, 3)),
    ],
)
def test_bytes_that_are_no_chunk(field: str, chunk: bytes) -> None:
    assert decode_chunk(FLAT, CHUNK, 0, 301).tolist() == ITEMS.tolist()
    with pytest.raises(CorruptData, match=f"^{field}: "):
        decode_chunk(FLAT, chunk, 0, 301)


def test_more_than_zeros_behind_the_last_item() -> None:
    chunk = encode_chunk(FLAT, np.array([0, 7], np.uint8), 0)
    with pytest.raises(CorruptData, match=r"^codes: "):
        decode_chunk(FLAT, chunk, 0, 1)


def test_twelve_bits_of_precision() -> None:
    # Rare symbols in a chunk that is long enough.
    items = np.zeros(40000, np.uint8)
    items[::1000] = 1
    chunk = encode_chunk(FLAT, items, 0)
    assert chunk[0] == 12
    assert decode_chunk(FLAT, chunk, 0, 40000).tolist() == items.tolist()


@given(bit=st.integers(0, 8 * len(CHUNK) - 1))
def test_any_flipped_bit_ends_well(bit: int) -> None:
    chunk = bytearray(CHUNK)
    chunk[bit // 8] ^= 1 << bit % 8
    try:
        assert len(decode_chunk(FLAT, bytes(chunk), 0, 301)) == 301
    except CorruptData:
        pass


@given(end=st.integers(0, len(CHUNK) - 1))
def test_any_truncation_is_found(end: int) -> None:
    with pytest.raises(CorruptData):
        decode_chunk(FLAT, CHUNK[:end], 0, 301)


@given(tail=st.binary(max_size=400), n=st.integers(1, 16))
def test_any_bytes_end_well(tail: bytes, n: int) -> None:
    try:
        assert len(decode_chunk(FLAT, header_of(1, 0, 0, 0, 16) + tail, 0, n)) == n
    except CorruptData:
        pass
