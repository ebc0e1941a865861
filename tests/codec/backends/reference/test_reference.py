"""The backend as a whole: every type, rule, codec and length; the bound; what it rejects."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.codec.backends import reference
from elbowroom.codec.recipe import Codec, Dtype, Model, Predictor, Recipe, Rule
from elbowroom.errors import CorruptData, InvalidArgument
from tests.codec.backends.reference.examples import (
    FLOATS,
    LOSSY,
    SPECIALS,
    check_bound,
    items_of,
    lossy_recipe,
    noise,
)

LENGTHS = (0, 1, 3, 63, 64, 65, 1000)

METHODS: list[dict[str, Any]] = [
    {"codec": Codec.RAW},
    {"codec": Codec.BLOCK},
    {"codec": Codec.BLOCK, "method": Predictor.LEFT},
    {"codec": Codec.BLOCK, "method": Predictor.ABOVE, "columns": 7},
    {"codec": Codec.BLOCK, "method": Predictor.PLANE, "columns": 7, "rows": 3},
    {"codec": Codec.DENSE, "method": Model.CODE, "weights": (64, 0, 0, 0)},
    {"codec": Codec.DENSE, "method": Model.FLAT, "shift": 3},
    {"codec": Codec.DENSE, "method": Model.ALONG, "weights": (40, 30, -20, 10), "columns": 7},
    {"codec": Codec.DENSE, "method": Model.ACROSS, "columns": 2, "rows": 2, "shift": 12},
    {"codec": Codec.DENSE, "method": Model.BOTH, "columns": 5, "weights": (-32768, 32767, 1, -1)},
    {"codec": Codec.DENSE, "method": Model.GRID, "columns": 3, "gain": -2, "shift": 22},
    {"codec": Codec.DENSE, "method": Model.SPARSE},
    {"codec": Codec.DENSE, "method": Model.SPARSE, "columns": 5, "rows": 2},
]


def both_ways(recipe: Recipe, items: np.ndarray) -> np.ndarray:
    chunks = reference.encode(recipe, items)
    assert len(chunks) == recipe.chunk_count(len(items))
    back = reference.decode(recipe, chunks, len(items))
    assert back.dtype == items.dtype
    assert back.shape == items.shape
    return back


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", Dtype)
def test_exact_round_trip(method: dict[str, Any], dtype: Dtype) -> None:
    for n in LENGTHS:
        items = noise(dtype, n, seed=n)
        assert both_ways(Recipe(dtype=dtype, **method), items).tobytes() == items.tobytes()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rule", LOSSY)
@pytest.mark.parametrize("flag", [False, True])
def test_lossy_round_trip(method: dict[str, Any], dtype: Dtype, rule: Rule, flag: bool) -> None:
    recipe = lossy_recipe(rule, dtype, 0.01, negative_zero=flag, **method)
    for n in LENGTHS:
        items = noise(dtype, n, seed=n)
        check_bound(recipe, items, both_ways(recipe, items))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_constants_and_offsets(method: dict[str, Any], dtype: Dtype) -> None:
    rng = np.random.default_rng(0)
    recipe = lossy_recipe(Rule.PLAIN, dtype, 0.01, **method)
    for values in (
        np.zeros(200),
        np.full(200, -3.25),
        np.full(200, 1e30),
        1e6 + rng.normal(size=200),
    ):
        items = items_of(dtype, values)
        check_bound(recipe, items, both_ways(recipe, items))


# What is not sparse takes the model sparse dozens of decisions an item: half a minute.
@pytest.mark.parametrize("method", METHODS[:-2])
@pytest.mark.parametrize(("dtype", "rule"), [(Dtype.F32, Rule.DITHER), (Dtype.F64, Rule.EXACT)])
def test_forty_thousand_items(method: dict[str, Any], dtype: Dtype, rule: Rule) -> None:
    items = noise(dtype, 40000)
    if rule == Rule.EXACT:
        assert both_ways(Recipe(dtype=dtype, **method), items).tobytes() == items.tobytes()
    else:
        recipe = lossy_recipe(rule, dtype, 0.01, **method)
        check_bound(recipe, items, both_ways(recipe, items))


@pytest.mark.parametrize("method", METHODS[1:5])
def test_chunks_decode_alone(method: dict[str, Any]) -> None:
    recipe = lossy_recipe(Rule.DITHER, Dtype.F16, 0.01, **method)
    items = noise(Dtype.F16, 2 * 65536 + 100)
    chunks = reference.encode(recipe, items)
    assert len(chunks) == 3
    back = reference.decode(recipe, chunks, len(items))
    check_bound(recipe, items, back)
    again = reference.encode(recipe, np.append(np.zeros(65536, np.float16), items[65536:]))
    assert again[1:] == chunks[1:]
    damaged = [chunks[0], chunks[1][:-1], chunks[2]]
    with pytest.raises(CorruptData, match=r"chunk 1: \w+: "):
        reference.decode(recipe, damaged, len(items))


def test_chunks_of_the_dense_codec() -> None:
    # 64 x 16400 items a chunk: twice as many would be too many.
    recipe = Recipe(
        codec=Codec.DENSE, dtype=Dtype.I32, method=Model.ALONG, columns=16400, weights=(0, 64, 0, 0)
    )
    items = np.random.default_rng(0).integers(0, 9, 64 * 16400 + 1000).astype(np.int32)
    assert recipe.chunk_items == 64 * 16400
    assert both_ways(recipe, items).tolist() == items.tolist()


@pytest.mark.parametrize("rule", LOSSY)
@given(data=st.data())
def test_the_bound_holds(rule: Rule, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(FLOATS))
    method = data.draw(st.sampled_from(METHODS))
    width = 64 if dtype == Dtype.F64 else 32
    value = st.one_of(
        st.floats(width=width), st.floats(-10, 10, width=width), st.sampled_from(SPECIALS)
    )
    items = items_of(dtype, data.draw(st.lists(value, max_size=80)))
    limit = data.draw(st.sampled_from([1e-6, 1e-3, 0.1, 0.5, 1000.0]))
    flag = data.draw(st.booleans())
    recipe = lossy_recipe(rule, dtype, min(limit, 0.5) if rule == Rule.POINTWISE else limit)
    recipe = replace(recipe, negative_zero=flag, **method)
    check_bound(recipe, items, both_ways(recipe, items))


def test_what_encode_does_not_take() -> None:
    recipe = Recipe(codec=Codec.RAW, dtype=Dtype.F32)
    for items in (np.zeros(3), np.zeros((3, 1), np.float32)):
        with pytest.raises(InvalidArgument, match="expected float32"):
            reference.encode(recipe, items)
    with pytest.raises(InvalidArgument, match="forbids"):
        reference.encode(replace(recipe, seed=1), np.zeros(3, np.float32))


def test_strides_do_not_matter() -> None:
    recipe = Recipe(codec=Codec.BLOCK, dtype=Dtype.F32)
    items = np.arange(100, dtype=np.float32)
    assert reference.encode(recipe, items[::-2]) == reference.encode(recipe, items[::-2].copy())


def test_what_decode_rejects() -> None:
    recipe = Recipe(codec=Codec.RAW, dtype=Dtype.F32)
    with pytest.raises(CorruptData, match="forbids this recipe: seed"):
        reference.decode(replace(recipe, seed=1), [], 0)
    for chunks, item_count in (([], 1), ([b""], 0), ([], -1), ([bytes(4)], 2**60)):
        with pytest.raises(CorruptData, match="do not make"):
            reference.decode(recipe, chunks, item_count)
    with pytest.raises(CorruptData, match="chunk 0: size: "):
        reference.decode(recipe, [bytes(5)], 1)


def test_a_stored_bool_is_0_or_1() -> None:
    recipe = Recipe(codec=Codec.RAW, dtype=Dtype.BOOL)
    assert reference.decode(recipe, [b"\0\1\2\3"], 4).view(np.uint8).tolist() == [0, 1, 0, 1]
