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


def header_of(length: int, escapes: int, extra: int, failed: int, words: int, tables: int) -> bytes:
    return struct.pack("<BBHIIIIII", 11, 0, 0, length, escapes, extra, failed, words, tables)


def test_a_chunk_of_one_zero() -> None:
    # 64 lanes of one step; symbol 128 has all of the 2048: len 12, eleven zeros below.
    tables = struct.pack("<QQ", 1, 128 | 128 << 8 | 12 << 16)
    expected = header_of(1, 0, 0, 0, 0, 16) + tables + struct.pack("<I", 65536) * 64
    assert encode_chunk(FLAT, np.zeros(1, np.uint8), 0) == expected
    assert decode_chunk(FLAT, expected, 0, 1).tolist() == [0]


def test_a_chunk_of_one_five() -> None:
    # Counts 63 and 1 of 64: (2 x 63 x 2048 + 64) div 128 = 2016 and 32. 63 bits are symbols 128 to
    # 133: 128: len 11, 2016 - 1024; four that do not occur; 133: len 6, 32 - 32.
    bits = 128 | 133 << 8 | 11 << 16 | (2016 - 1024) << 20 | 0 << 30 | 6 << 46 | 0 << 50
    tables = struct.pack("<QQ", 1, bits)
    # 65536 = 2048 x 32, and 32 x 2016 + 1024.
    states = [2048 * 2048 + 2016] + [32 * 2048 + 1024] * 63
    expected = header_of(1, 0, 0, 0, 0, 16) + tables + struct.pack("<64I", *states)
    assert encode_chunk(FLAT, np.array([5], np.uint8), 0) == expected
    assert decode_chunk(FLAT, expected, 0, 1).tolist() == [5]


def test_an_escape_extra_bits_and_a_failed_item_end_the_chunk() -> None:
    recipe = Recipe(
        codec=Codec.DENSE,
        dtype=Dtype.F32,
        rule=Rule.PLAIN,
        step=1.0,
        inverse=1.0,
        limit=0.5,
        method=Model.FLAT,
        shift=2,
    )
    # Lanes of one: what fails has no item before it in its lane.
    items = np.array([1000.0, 7.0, np.inf, -8.0], np.float32)
    chunk = encode_chunk(recipe, items, 0)
    assert chunk[:24] == header_of(1, 1, 2, 1, 0, 0)[:24]
    # 7 - 1 = 0b110 and 8 - 1 = 0b111: 10, then 11 above it.
    assert chunk[-13:] == bytes([0b1110]) + struct.pack("<iIf", 1000, 2, np.inf)
    assert decode_chunk(recipe, chunk, 0, 4).tobytes() == items.tobytes()


def test_a_failed_item_takes_the_code_before_it_in_its_lane() -> None:
    recipe = Recipe(
        codec=Codec.DENSE,
        dtype=Dtype.F32,
        rule=Rule.PLAIN,
        step=1.0,
        inverse=1.0,
        limit=0.5,
        method=Model.FLAT,
        weights=(64, 0, 0, 0),
    )
    # Two steps a lane, every code 3; then NaN at a lane's end, and at a lane's start.
    items = np.full(128, 3.0, np.float32)
    plain = encode_chunk(recipe, items, 0)
    items[5] = np.nan
    assert encode_chunk(recipe, items, 0)[28:-8] == plain[28:]
    items[4] = np.nan
    assert encode_chunk(recipe, items, 0)[28:-16] != plain[28:]
    assert decode_chunk(recipe, encode_chunk(recipe, items, 0), 0, 128).tobytes() == items.tobytes()


def test_smooth_planes_take_few_bytes() -> None:
    # Every second difference is zero: only the planes' edges and the padding cost anything.
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


RECIPE = replace(FLAT, shift=1)
ITEMS = np.random.default_rng(0).integers(0, 256, 300).astype(np.uint8)
CHUNK = encode_chunk(RECIPE, np.append(ITEMS, np.uint8(255)), 0)


def with_u32(at: int, value: int) -> bytes:
    return CHUNK[:at] + struct.pack("<I", value) + CHUNK[at + 4 :]


@pytest.mark.parametrize(
    ("field", "chunk"),
    [
        ("size", b""),
        ("size", CHUNK[:27]),
        ("size", CHUNK[:-1]),
        ("size", CHUNK + b"\0"),
        ("precision", b"\x0a" + CHUNK[1:]),
        ("tables", b"\x0c" + CHUNK[1:]),
        ("reserved", CHUNK[:1] + b"\x01" + CHUNK[2:]),
        ("reserved", CHUNK[:3] + b"\x01" + CHUNK[4:]),
        ("lane length", with_u32(4, 6)),
        ("escapes", with_u32(8, 2**32 - 1)),
        ("extra bits", with_u32(12, 2**32 - 1)),
        ("failed", with_u32(16, 1)),
        ("words", with_u32(20, 2**32 - 1)),
        ("size", with_u32(24, 2**32 - 1)),
        ("size", with_u32(24, 8)),
        ("tables", with_u32(28, 3)),
    ],
)
def test_bytes_that_are_no_chunk(field: str, chunk: bytes) -> None:
    with pytest.raises(CorruptData, match=f"^{field}: "):
        decode_chunk(RECIPE, chunk, 0, 301)


def test_more_than_zeros_behind_the_last_item() -> None:
    chunk = encode_chunk(FLAT, np.array([0, 7], np.uint8), 0)
    with pytest.raises(CorruptData, match=r"^codes: "):
        decode_chunk(FLAT, chunk, 0, 1)


def test_extra_bits_where_the_shift_is_0() -> None:
    chunk = encode_chunk(FLAT, np.zeros(1, np.uint8), 0)
    with pytest.raises(CorruptData, match=r"^extra bits: "):
        decode_chunk(FLAT, chunk[:12] + struct.pack("<I", 1) + chunk[16:], 0, 1)


@given(bit=st.integers(0, 8 * len(CHUNK) - 1))
def test_any_flipped_bit_ends_well(bit: int) -> None:
    chunk = bytearray(CHUNK)
    chunk[bit // 8] ^= 1 << bit % 8
    try:
        assert len(decode_chunk(RECIPE, bytes(chunk), 0, 301)) == 301
    except CorruptData:
        pass


@given(end=st.integers(0, len(CHUNK) - 1))
def test_any_truncation_is_found(end: int) -> None:
    with pytest.raises(CorruptData):
        decode_chunk(RECIPE, CHUNK[:end], 0, 301)


@given(tail=st.binary(max_size=400), n=st.integers(1, 64))
def test_any_bytes_end_well(tail: bytes, n: int) -> None:
    try:
        assert len(decode_chunk(FLAT, header_of(1, 0, 0, 0, 0, 16) + tail, 0, n)) == n
    except CorruptData:
        pass
