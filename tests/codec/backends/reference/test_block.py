"""Chunks of the block codec: bytes by hand, raw blocks, and bytes that are no chunk."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.codec.backends.reference.block import decode_chunk, encode_chunk
from elbowroom.codec.recipe import Codec, Dtype, Predictor, Recipe, Rule
from elbowroom.errors import CorruptData
from tests.codec.backends.reference.examples import lossy_recipe, noise

BYTES = Recipe(codec=Codec.BLOCK, dtype=Dtype.U8)
HALVES = Recipe(
    codec=Codec.BLOCK, dtype=Dtype.F32, rule=Rule.PLAIN, step=0.5, inverse=2.0, limit=0.25
)


def test_a_chunk_by_hand() -> None:
    # 65 codes: a block of zeros with one 1, and a block of a single 9.
    items = np.zeros(65, np.uint8)
    items[3], items[64] = 1, 9
    expected = bytes.fromhex("00000000 01800000 0800000000000000 09000000")
    assert encode_chunk(BYTES, items, 0) == expected
    assert decode_chunk(BYTES, expected, 0, 65).tolist() == items.tolist()


def test_failed_items_by_hand() -> None:
    # 1.0 has code 2; NaN and 0.25, on the limit, take the code before them.
    items = np.full(64, 1.0, np.float32)
    items[5], items[6] = np.nan, 0.25
    expected = bytes.fromhex("02000000 80000000 02000000 0500 0600")
    expected += items[5:7].tobytes()
    assert encode_chunk(HALVES, items, 0) == expected
    assert decode_chunk(HALVES, expected, 0, 64).tobytes() == items.tobytes()


def test_a_block_that_would_not_shrink_is_raw() -> None:
    # Two items: a payload of 4 bytes and one failed item of 6 are not less than 8.
    items = np.array([1.0, np.nan], np.float32)
    expected = bytes.fromhex("00000000 c0000000") + items.tobytes()
    assert encode_chunk(HALVES, items, 0) == expected
    assert decode_chunk(HALVES, expected, 0, 2).tobytes() == items.tobytes()
    # Three: 10 bytes are less than 12.
    items = np.array([1.0, np.nan, 1.0], np.float32)
    assert encode_chunk(HALVES, items, 0)[:12] == bytes.fromhex("01000000 80000000 02000000")


def test_a_raw_block_hands_its_code_on() -> None:
    # The last code of a raw block is what a failed item after it takes.
    items = np.full(128, 1.0, np.float32)
    items[:63] = np.nan
    items[64] = np.nan
    chunk = encode_chunk(HALVES, items, 0)
    assert chunk[:8] == bytes.fromhex("01000000 c0800000")
    assert chunk[8 + 256 :] == bytes.fromhex("02000000 4000") + items[64:65].tobytes()
    assert decode_chunk(HALVES, chunk, 0, 128).tobytes() == items.tobytes()


@pytest.mark.parametrize("dtype", [Dtype.F16, Dtype.BF16, Dtype.F32])
@pytest.mark.parametrize("n", [2, 63, 64, 65, 200])
def test_raw_only_without_predictor(dtype: Dtype, n: int) -> None:
    items = noise(dtype, n)
    direct = encode_chunk(lossy_recipe(Rule.PLAIN, dtype, 1e-9), items, 0)
    assert 0xC0 in direct[4 : 4 + -(-n // 64)]
    recipe = lossy_recipe(Rule.PLAIN, dtype, 1e-9, method=Predictor.LEFT)
    predicted = encode_chunk(recipe, items, 0)
    assert 0xC0 not in predicted[4 : 4 + -(-n // 64)]


CHUNK = encode_chunk(HALVES, np.array([np.nan, *range(99)], np.float32), 0)


@pytest.mark.parametrize(
    ("field", "chunk"),
    [
        ("size", b""),
        ("size", CHUNK[:5]),
        ("size", CHUNK[:-1]),
        ("size", CHUNK + b"\0"),
        ("failed", struct.pack("<I", 101) + CHUNK[4:]),
        ("failed", struct.pack("<I", 2**32 - 1) + CHUNK[4:]),
        ("size", struct.pack("<I", 2) + CHUNK[4:]),
        ("headers", CHUNK[:4] + b"\x21" + CHUNK[5:]),
        ("headers", CHUNK[:4] + b"\xc1" + CHUNK[5:]),
        ("headers", CHUNK[:6] + b"\x01" + CHUNK[7:]),
        ("failed", CHUNK[:-6] + struct.pack("<H", 100) + CHUNK[-4:]),
    ],
)
def test_bytes_that_are_no_chunk(field: str, chunk: bytes) -> None:
    assert decode_chunk(HALVES, CHUNK, 0, 100)[1:].tolist() == list(range(99))
    with pytest.raises(CorruptData, match=f"^{field}: "):
        decode_chunk(HALVES, chunk, 0, 100)


def test_raw_and_failed_where_nothing_fails() -> None:
    with pytest.raises(CorruptData, match=r"^headers: "):
        decode_chunk(BYTES, bytes.fromhex("00000000 c0000000 07"), 0, 1)
    with pytest.raises(CorruptData, match=r"^failed: "):
        decode_chunk(BYTES, bytes.fromhex("01000000 00000000 0000 07"), 0, 1)


def test_positions_ascend() -> None:
    items = np.zeros(64, np.float32)
    items[[3, 9]] = np.nan
    chunk = encode_chunk(HALVES, items, 0)
    assert chunk[8:12] == struct.pack("<HH", 3, 9)
    for positions in ((9, 3), (3, 3), (3, 64)):
        with pytest.raises(CorruptData, match=r"^failed: "):
            decode_chunk(HALVES, chunk[:8] + struct.pack("<HH", *positions) + chunk[12:], 0, 64)


@given(chunk=st.binary(max_size=64), n=st.integers(1, 130))
def test_any_bytes_end_well(chunk: bytes, n: int) -> None:
    for recipe in (BYTES, HALVES):
        try:
            assert len(decode_chunk(recipe, chunk, 0, n)) == n
        except CorruptData:
            pass


def test_any_flipped_bit_ends_well() -> None:
    for bit in range(8 * len(CHUNK)):
        chunk = bytearray(CHUNK)
        chunk[bit // 8] ^= 1 << bit % 8
        try:
            assert len(decode_chunk(HALVES, bytes(chunk), 0, 100)) == 100
        except CorruptData:
            pass
