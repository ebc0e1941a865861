"""The model sparse: native and reference agree on every byte, and on what they refuse."""

import random
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from elbowroom import Bound, _native, decode, encode
from elbowroom.codec.backends import native, reference
from elbowroom.codec.backends.reference.decisions import Decoder
from elbowroom.codec.backends.reference.numbers import NUMPY_TYPES, Items
from elbowroom.codec.backends.reference.sparse import Walk
from elbowroom.codec.buffers import Segment
from elbowroom.codec.checksum import checksum
from elbowroom.codec.recipe import Codec, Dtype, Model, Recipe, Rule
from elbowroom.errors import CorruptData

COLUMNS = [0, 1, 2, 3, 7, 15, 16, 17, 31, 63, 64, 65, 100, 192, 31744, 31745]
# How many codes are not zero, and how large they are.
DENSITIES = [0.0, 0.002, 0.02, 0.1, 0.5, 1.0]
SIZES = [1, 2, 4, 300, 2**31]


@st.composite
def rare_codes(draw: st.DrawFn, max_items: int = 1500) -> NDArray[np.int32]:
    """Draw codes of which few are not zero, in places that are random, bunched or repeated."""
    n = draw(st.integers(1, max_items))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    size = draw(st.sampled_from(SIZES))
    codes = rng.integers(-size, size, n, dtype=np.int64) * (
        rng.random(n) < draw(st.sampled_from(DENSITIES))
    )
    shape = draw(st.sampled_from(["random", "bunched", "repeated"]))
    if shape == "bunched":
        codes *= np.arange(n) // 50 % 3 == 0
    elif shape == "repeated":
        codes = codes[np.arange(n) % draw(st.integers(1, 70))]
    return codes.astype(np.int32)


def write(recipe: Recipe, items: Items) -> list[bytes]:
    """The chunks that the kernels write."""
    segments, directory = native.encode(recipe.pack(), items.ctypes.data, len(items), 1)
    payload = b"".join(segment[0].tobytes() for segment in segments)
    ends = np.cumsum(directory[:, 0]).tolist()
    return [payload[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def read(recipe: Recipe, chunk: bytes, count: int) -> Items | None:
    """What the kernels read from a chunk whose checksum fits; None if they refuse it."""
    items = np.zeros(count, NUMPY_TYPES[recipe.dtype])
    directory = np.array([[len(chunk), checksum(chunk)]], np.uint32)
    data = np.array(bytearray(chunk), np.uint8)
    segments = (Segment(data, 0, 1),)
    try:
        native.decode(recipe.pack(), segments, directory, count, items.ctypes.data, 1)
    except CorruptData:
        return None
    return items


def read_slowly(recipe: Recipe, chunk: bytes, count: int) -> Items | None:
    try:
        return reference.decode(recipe, [chunk], count)
    except CorruptData:
        return None


@settings(max_examples=60)
@given(codes=rare_codes(), columns=st.sampled_from(COLUMNS), rows=st.integers(0, 3))
def test_every_level_writes_what_the_reference_writes(
    codes: NDArray[np.int32], columns: int, rows: int
) -> None:
    recipe = Recipe(
        codec=Codec.DENSE, dtype=Dtype.I32, method=Model.SPARSE, columns=columns, rows=rows
    )
    expected = reference.encode(recipe, codes)
    before = _native.isa()
    try:
        for level in _native.isa_levels():
            _native.set_isa(level)
            assert write(recipe, codes) == expected
            found = read(recipe, expected[0], len(codes))
            assert found is not None and found.tobytes() == codes.tobytes()
    finally:
        _native.set_isa(before)


@given(front=st.binary(min_size=1, max_size=20), zeros=st.integers(0, 30))
def test_carries_reach_far_back(front: bytes, zeros: int) -> None:
    # Just above a round number: the writer stays below it until the last byte lifts it.
    number = front[:-1] + bytes([front[-1] | 1]) + bytes(zeros) + b"\x01"
    recipe = Recipe(codec=Codec.DENSE, dtype=Dtype.I32, method=Model.SPARSE)
    codes = Walk(Decoder(number), 0).run([0] * 2000)
    items = np.array(codes, np.int32)
    assert write(recipe, items) == reference.encode(recipe, items)


RULES: list[dict[str, Any]] = [
    {"rule": Rule.PLAIN, "step": 0.5, "inverse": 2.0, "limit": 0.3125},
    {"rule": Rule.SIGNS, "step": 0.5, "inverse": 2.0, "limit": 0.375, "negative_zero": True},
    {"rule": Rule.DITHER, "step": 0.5, "inverse": 2.0, "limit": 0.3125, "seed": 77},
    {"rule": Rule.POINTWISE, "step": 1024.0, "inverse": 2.0**-10, "limit": 2.0**-7},
    {},
]


@pytest.mark.parametrize("fields", RULES)
@pytest.mark.parametrize("dtype", [Dtype.F16, Dtype.BF16, Dtype.F32, Dtype.F64])
def test_floats_with_what_fails(dtype: Dtype, fields: dict[str, Any], isa: str) -> None:
    rng = np.random.default_rng(dtype)
    values = np.where(rng.random(700) < 0.04, rng.standard_normal(700) * 3, 0)
    values[rng.integers(0, 700, 12)] = [np.nan, np.inf, -np.inf, -0.0, 1e30, 1e-42] * 2
    with np.errstate(over="ignore"):
        items = values.astype(np.float32 if dtype == Dtype.BF16 else NUMPY_TYPES[dtype])
    if dtype == Dtype.BF16:
        items = (items.view(np.uint32) >> 16).astype(np.uint16)
    recipe = Recipe(codec=Codec.DENSE, dtype=dtype, method=Model.SPARSE, columns=20, **fields)
    chunks = write(recipe, items)
    assert chunks == reference.encode(recipe, items)
    slow = read_slowly(recipe, chunks[0], len(items))
    fast = read(recipe, chunks[0], len(items))
    assert slow is not None and fast is not None and fast.tobytes() == slow.tobytes()


@settings(max_examples=150)
@given(
    codes=rare_codes(max_items=300),
    columns=st.sampled_from(COLUMNS),
    change=st.sampled_from(["cut", "longer", "other", "number"]),
    seed=st.integers(0, 2**16),
)
def test_backends_agree_on_damaged_chunks(
    codes: NDArray[np.int32], columns: int, change: str, seed: int
) -> None:
    rng = random.Random(seed)
    recipe = Recipe(
        codec=Codec.DENSE,
        dtype=Dtype.F32,
        rule=Rule.PLAIN,
        step=1.0,
        inverse=1.0,
        limit=0.75,
        method=Model.SPARSE,
        columns=columns,
    )
    items = codes.astype(np.float32)
    items[[rng.randrange(len(items)), rng.randrange(len(items))]] = np.nan
    chunk = bytearray(write(recipe, items)[0])
    if change == "cut":
        del chunk[rng.randrange(len(chunk)) :]
    elif change == "longer":
        at = rng.randrange(4, len(chunk))
        chunk[at:at] = rng.randbytes(rng.randrange(1, 9))
    elif change == "other":
        chunk[rng.randrange(len(chunk))] ^= 1 << rng.randrange(8)
    else:
        # Any number at all, and whole entries of failed items that are right.
        chunk = bytearray(struct.pack("<I", 1) + rng.randbytes(rng.randrange(40)))
        chunk += struct.pack("<If", rng.randrange(len(items)), np.inf)
    slow = read_slowly(recipe, bytes(chunk), len(items))
    fast = read(recipe, bytes(chunk), len(items))
    if slow is None:
        assert fast is None
    else:
        assert fast is not None and fast.tobytes() == slow.tobytes()


@pytest.mark.parametrize("shape", [(300000,), (600, 500), (3, 200, 500)])
def test_it_is_chosen_for_what_is_nearly_all_zero(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    x = np.where(rng.random(shape) < 1e-3, rng.standard_normal(shape), 0).astype(np.float32)
    blob = encode(x, Bound.absolute(0.3), codec="dense")
    assert blob.recipe.method == Model.SPARSE
    assert np.abs(decode(blob) - x).max() <= 0.3
    later = encode(2 * x, Bound.absolute(0.3), like=blob)
    assert later.recipe.method == Model.SPARSE
    everywhere = encode(rng.standard_normal(shape), Bound.absolute(0.3), codec="dense")
    assert everywhere.recipe.method != Model.SPARSE


def test_it_takes_less_than_the_others() -> None:
    x = np.zeros(2_000_000, np.float32)
    x[::20011] = 1.0
    blob = encode(x, Bound.absolute(0.1))
    assert blob.recipe.method == Model.SPARSE
    assert blob.nbytes < 400
    assert np.abs(decode(blob) - x).max() <= 0.1
