"""The recipe: its bytes, its lengths of chunks, and the fields that no writer writes."""

import struct
from dataclasses import replace
from typing import Any

import pytest

from elbowroom import _native
from elbowroom.codec.recipe import Codec, Dtype, Model, Predictor, Recipe, Rule
from elbowroom.errors import CorruptData, InvalidArgument

DITHERED = Recipe(
    codec=Codec.DENSE,
    dtype=Dtype.F32,
    rule=Rule.DITHER,
    negative_zero=True,
    seed=0x01020304,
    step=0.5,
    inverse=2.0,
    limit=0.25,
    method=Model.GRID,
    columns=28,
    rows=7,
    weights=(64, -64, 32767, -32768),
    shift=22,
    gain=-20,
)
EXACT = Recipe(codec=Codec.BLOCK, dtype=Dtype.I16)
SPARSE = Recipe(codec=Codec.DENSE, dtype=Dtype.I16, method=Model.SPARSE, columns=3, rows=4)
POINTWISE = Recipe(
    codec=Codec.BLOCK, dtype=Dtype.F64, rule=Rule.POINTWISE, step=2.0**40, inverse=0.5, limit=0.1
)


def test_bytes_are_those_of_the_page() -> None:
    data = DITHERED.pack()
    assert len(data) == 64
    assert data[:8] == bytes([2, 3, 3, 1, 4, 3, 2, 1])
    assert struct.unpack("<3d", data[8:32]) == (0.5, 2.0, 0.25)
    assert data[32:44] == bytes([5, 0, 0, 0, 28, 0, 0, 0, 7, 0, 0, 0])
    assert data[44:] == bytes.fromhex("4000 c0ff ff7f 0080 16 ec") + bytes(10)


@pytest.mark.parametrize("recipe", [DITHERED, EXACT, POINTWISE, SPARSE])
def test_unpack_is_the_inverse_of_pack(recipe: Recipe) -> None:
    assert Recipe.unpack(recipe.pack()) == recipe


@pytest.mark.parametrize(
    ("field", "base", "at", "value"),
    [
        ("codec", EXACT, 0, b"\x03"),
        ("dtype", EXACT, 1, b"\x00"),
        ("dtype", EXACT, 1, b"\x0e"),
        ("rule", EXACT, 2, b"\x05"),
        ("rule", EXACT, 2, b"\x01"),
        ("flags", DITHERED, 3, b"\x02"),
        ("flags", EXACT, 3, b"\x01"),
        ("seed", EXACT, 4, b"\x01"),
        ("step", EXACT, 8, struct.pack("<d", 1.0)),
        ("step", EXACT, 8, struct.pack("<d", -0.0)),
        ("step", DITHERED, 8, struct.pack("<d", 0.0)),
        ("step", DITHERED, 8, struct.pack("<d", -1.0)),
        ("step", DITHERED, 8, struct.pack("<d", float("nan"))),
        ("step", DITHERED, 8, struct.pack("<d", 0.1)),
        ("step", POINTWISE, 8, struct.pack("<d", 1.5)),
        ("step", POINTWISE, 8, struct.pack("<d", 2.0**52 + 1)),
        ("inverse", DITHERED, 16, struct.pack("<d", float("inf"))),
        ("limit", DITHERED, 24, struct.pack("<d", 1e300)),
        ("method", EXACT, 32, b"\x04"),
        ("method", DITHERED, 32, b"\x07"),
        ("reserved", EXACT, 33, b"\x01"),
        ("columns", EXACT, 32, b"\x02"),
        ("rows", EXACT, 32, b"\x03\0\0\0\x05"),
        ("weights", EXACT, 44, b"\x01"),
        ("weights", DITHERED, 32, b"\x06"),
        ("weights", SPARSE, 50, b"\x01"),
        ("shift", SPARSE, 52, b"\x01"),
        ("gain", SPARSE, 53, b"\x01"),
        ("shift", DITHERED, 52, b"\x17"),
        ("shift", EXACT, 52, b"\x01"),
        ("gain", DITHERED, 53, b"\x15"),
        ("gain", DITHERED, 53, b"\xeb"),
        ("gain", DITHERED, 32, b"\x04"),
        ("gain", EXACT, 53, b"\x01"),
        ("reserved", EXACT, 54, b"\x01"),
        ("reserved", EXACT, 63, b"\x01"),
    ],
)
def test_a_forged_field_is_named(field: str, base: Recipe, at: int, value: bytes) -> None:
    data = bytearray(base.pack())
    data[at : at + len(value)] = value
    with pytest.raises(CorruptData, match=f"recipe: {field}: "):
        Recipe.unpack(bytes(data))


def test_other_lengths_than_64_are_rejected() -> None:
    for data in (b"", EXACT.pack()[:-1], EXACT.pack() + b"\0"):
        with pytest.raises(CorruptData, match="64 bytes"):
            Recipe.unpack(data)


@pytest.mark.parametrize(
    "fields",
    [
        {"method": Predictor.ABOVE},
        {"columns": 2**32},
        {"columns": -1},
        {"weights": (2**15, 0, 0, 0)},
        {"codec": Codec.RAW, "method": 1},
        {"dtype": Dtype.F16, "rule": Rule.PLAIN},
    ],
)
def test_what_the_format_forbids_is_not_packed(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        replace(EXACT, **fields).pack()


@pytest.mark.parametrize(
    ("codec", "dtype", "columns", "rows", "expected"),
    [
        (Codec.RAW, Dtype.F64, 0, 0, 4194304),
        (Codec.BLOCK, Dtype.F32, 100, 100, 65536),
        (Codec.BLOCK, Dtype.I64, 0, 0, 32768),
        (Codec.DENSE, Dtype.F32, 0, 0, 2031616),
        (Codec.DENSE, Dtype.I64, 0, 0, 1015808),
        (Codec.DENSE, Dtype.F32, 0, 9, 2031616),
        (Codec.DENSE, Dtype.F32, 100, 0, 317 * 6400),
        (Codec.DENSE, Dtype.F32, 100, 100, 3 * 640000),
        (Codec.DENSE, Dtype.F32, 256, 124, 2031616),
        (Codec.DENSE, Dtype.F32, 257, 124, 123 * 64 * 257),
        (Codec.DENSE, Dtype.F32, 31745, 1, 2031616),
        (Codec.DENSE, Dtype.I64, 100, 0, 158 * 6400),
        (Codec.DENSE, Dtype.I64, 31744, 0, 1015808),
    ],
)
def test_length_of_a_chunk(
    codec: Codec, dtype: Dtype, columns: int, rows: int, expected: int
) -> None:
    recipe = Recipe(codec=codec, dtype=dtype, columns=columns, rows=rows)
    assert recipe.chunk_items == expected
    assert [recipe.chunk_count(n) for n in (0, 1, expected, expected + 1)] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("dtype", "columns", "rows", "chunk", "expected"),
    [
        (Dtype.F32, 0, 0, 16, 65536),
        (Dtype.F32, 0, 0, 495, 2027520),
        (Dtype.F32, 100, 0, 100, 64 * 6400),
        (Dtype.F32, 56, 56, 98, 2 * 64 * 3136),
        (Dtype.F32, 56, 56, 16, 18 * 64 * 56),
        (Dtype.I64, 0, 0, 400, 1015808),
        (Dtype.I64, 0, 0, 100, 409600),
    ],
)
def test_length_of_a_shorter_chunk(
    dtype: Dtype, columns: int, rows: int, chunk: int, expected: int
) -> None:
    recipe = Recipe(codec=Codec.DENSE, dtype=dtype, columns=columns, rows=rows, chunk=chunk)
    assert recipe.chunk_items == expected
    assert _native.chunk_items(recipe.pack()) == expected
    assert Recipe.unpack(recipe.pack()) == recipe


@pytest.mark.parametrize("chunk", [1, 15, 496, 65535])
def test_chunks_of_a_length_that_no_writer_writes(chunk: int) -> None:
    good = Recipe(codec=Codec.DENSE, dtype=Dtype.F32, chunk=16).pack()
    with pytest.raises(CorruptData, match="chunk"):
        Recipe.unpack(good[:34] + struct.pack("<H", chunk) + good[36:])
    with pytest.raises(CorruptData, match="chunk"):
        Recipe.unpack(bytes([Codec.BLOCK]) + good[1:])
