"""Chunks of the model sparse: parts, sizes by hand, the codes at its limits, what it rejects."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.codec.backends.reference.sparse import decode_chunk, encode_chunk
from elbowroom.codec.recipe import Codec, Dtype, Model, Recipe, Rule
from elbowroom.errors import CorruptData

FLAT = Recipe(codec=Codec.DENSE, dtype=Dtype.I32, method=Model.SPARSE)
ROWS = replace(FLAT, columns=7)
# Codes are the items, rounded.
WHOLE = replace(FLAT, dtype=Dtype.F32, rule=Rule.PLAIN, step=1.0, inverse=1.0, limit=0.75)


def both_ways(recipe: Recipe, items: np.ndarray) -> bytes:
    chunk = encode_chunk(recipe, items, 0)
    assert decode_chunk(recipe, chunk, 0, len(items)).tobytes() == items.tobytes()
    return chunk


def test_zeros_take_four_bytes() -> None:
    for n in (1, 64, 65, 5000):
        for recipe in (FLAT, ROWS):
            assert both_ways(recipe, np.zeros(n, np.int32)) == bytes(4)


def test_a_single_code_by_hand() -> None:
    # Block yes; piece and code are clear; no longer than 1; positive: 1, 0, 0 with even chances.
    assert both_ways(FLAT, np.array([1], np.int32)) == bytes(4) + b"\x80"
    # And negative: 1, 0, 1.
    assert both_ways(FLAT, np.array([-1], np.int32)) == bytes(4) + b"\xa0"


def test_codes_of_every_length() -> None:
    codes = [
        sign * ((1 << bit) + near) for bit in range(31) for near in (-1, 0) for sign in (1, -1)
    ]
    codes += [2**31 - 1, -(2**31 - 1), -(2**31)]
    items = np.array(codes, np.int32)
    for recipe in (FLAT, ROWS, replace(FLAT, columns=2), replace(FLAT, columns=64)):
        both_ways(recipe, items)


def test_failed_items_take_the_code_before_them() -> None:
    items = np.array([np.nan, 3, np.inf, 0, np.nan, 5], np.float32)
    chunk = both_ways(WHOLE, items)
    assert chunk[:4] == struct.pack("<I", 3)
    assert chunk[-24:-12] == struct.pack("<3I", 0, 2, 4)
    codes = encode_chunk(FLAT, np.array([0, 3, 3, 0, 0, 5], np.int32), 0)
    assert chunk[4:-24] == codes[4:]


def test_what_repeats_by_rows_costs_less_with_rows() -> None:
    rng = np.random.default_rng(0)
    row = (rng.random(100) < 0.04) * rng.integers(1, 4, 100)
    items = np.tile(row, 40).astype(np.int32)
    flat, rows = (len(both_ways(replace(FLAT, columns=columns), items)) for columns in (0, 100))
    assert rows < flat / 2


def test_columns_that_do_not_count() -> None:
    items = np.array([0, 1, 0, 2] * 30, np.int32)
    for columns in (1, 31745, 2**32 - 1):
        recipe = replace(FLAT, columns=columns)
        assert both_ways(recipe, items) == both_ways(FLAT, items)
    assert both_ways(replace(FLAT, columns=31744), items) != both_ways(FLAT, items)
    words = np.array([0, 1, 0, -2] * 30, np.int64)
    recipe = replace(FLAT, dtype=Dtype.I64)
    assert both_ways(replace(recipe, columns=4), words) == both_ways(recipe, words)


CHUNK = encode_chunk(WHOLE, np.array([0] * 90 + [np.inf, 7, np.nan], np.float32), 0)


@pytest.mark.parametrize(
    ("field", "chunk"),
    [
        ("size", b""),
        ("size", CHUNK[:3]),
        ("size", CHUNK[:19]),
        ("failed", struct.pack("<I", 94) + CHUNK[4:]),
        ("failed", struct.pack("<I", 2**32 - 1) + CHUNK[4:]),
        ("failed", CHUNK[:-16] + struct.pack("<2I", 92, 90) + CHUNK[-8:]),
        ("failed", CHUNK[:-16] + struct.pack("<2I", 90, 90) + CHUNK[-8:]),
        ("failed", CHUNK[:-16] + struct.pack("<2I", 90, 93) + CHUNK[-8:]),
        ("decisions", CHUNK[:-16] + b"\0" + CHUNK[-16:]),
        ("decisions", CHUNK[:-16] + b"\1" * 99 + CHUNK[-16:]),
        ("decisions", CHUNK[:4] + b"\xff" * 8 + CHUNK[-16:]),
    ],
)
def test_bytes_that_are_no_chunk(field: str, chunk: bytes) -> None:
    assert len(decode_chunk(WHOLE, CHUNK, 0, 93)) == 93
    with pytest.raises(CorruptData, match=f"^{field}: "):
        decode_chunk(WHOLE, chunk, 0, 93)


def test_exact_items_never_fail() -> None:
    with pytest.raises(CorruptData, match=r"^failed: "):
        decode_chunk(FLAT, struct.pack("<III", 1, 0, 0), 0, 4)


@given(data=st.binary(max_size=60), n=st.integers(1, 200), columns=st.integers(0, 70))
def test_any_bytes_end_well(data: bytes, n: int, columns: int) -> None:
    recipe = replace(FLAT, columns=columns)
    try:
        items = decode_chunk(recipe, bytes(4) + data, 0, n)
    except CorruptData:
        return
    assert len(items) == n
    # Of a few numbers that mean the same, a writer takes the shortest.
    assert len(encode_chunk(recipe, items, 0)) <= 4 + len(data)
