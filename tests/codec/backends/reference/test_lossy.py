"""The lossy rules: codes that a pencil can check, the bound, signs and zeros."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.codec.backends.reference.codes import encode_codes
from elbowroom.codec.backends.reference.lossy import dither, quantise, reconstruct
from elbowroom.codec.backends.reference.numbers import real_type, widen
from elbowroom.codec.recipe import Codec, Dtype, Recipe, Rule
from tests.codec.backends.reference.examples import (
    FLOATS,
    LOSSY,
    SPECIALS,
    check_bound,
    items_of,
    lossy_recipe,
)


def halves_of(rule: Rule, dtype: Dtype, negative_zero: bool = False) -> Recipe:
    """Bins of one half."""
    return Recipe(
        codec=Codec.BLOCK,
        dtype=dtype,
        rule=rule,
        negative_zero=negative_zero,
        step=0.5,
        inverse=2.0,
        limit=0.375,
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("rule", "flag", "expected"),
    [
        (Rule.PLAIN, False, {0.0: 0, 0.2: 0, 0.3: 1, 1.0: 2, -0.3: -1, -1.0: -2}),
        (Rule.PLAIN, True, {0.0: 0, 0.2: 0, 0.3: 1, 1.0: 2, -0.3: -2, -1.0: -3}),
        (Rule.SIGNS, False, {0.0: 0, 0.2: 1, 0.3: 1, 1.0: 3, -0.3: -1, -1.0: -2}),
        (Rule.SIGNS, True, {0.0: 0, 0.2: 1, 0.3: 1, 1.0: 3, -0.3: -2, -1.0: -3}),
    ],
)
def test_known_codes(dtype: Dtype, rule: Rule, flag: bool, expected: dict[float, int]) -> None:
    codes, stands = quantise(
        halves_of(rule, dtype, negative_zero=flag), items_of(dtype, list(expected)), 0
    )
    assert stands.all()
    assert codes.tolist() == list(expected.values())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("rule", "flag", "expected"),
    [
        (Rule.PLAIN, False, {0: 0.0, 3: 1.5, -1: -0.5, -2: -1.0}),
        (Rule.PLAIN, True, {0: 0.0, 3: 1.5, -1: -0.0, -2: -0.5}),
        (Rule.SIGNS, False, {0: 0.0, 3: 1.25, -1: -0.25, -2: -0.75}),
        (Rule.SIGNS, True, {0: 0.0, 3: 1.25, -1: -0.0, -2: -0.25}),
    ],
)
def test_known_reconstructions(
    dtype: Dtype, rule: Rule, flag: bool, expected: dict[int, float]
) -> None:
    codes = np.array(list(expected), np.int32)
    items = reconstruct(halves_of(rule, dtype, negative_zero=flag), codes, 0)
    assert items.tobytes() == items_of(dtype, list(expected.values())).tobytes()


@pytest.mark.parametrize("dtype", [Dtype.F16, Dtype.BF16, Dtype.F32])
@pytest.mark.parametrize("flag", [False, True])
def test_pointwise_counts_on_the_pattern(dtype: Dtype, flag: bool) -> None:
    # 1.0 has the pattern 127 x 2^23, so a step of 2^20 numbers it 127 x 8.
    recipe = replace(
        lossy_recipe(Rule.POINTWISE, dtype, 0.25),
        step=2.0**20,
        inverse=2.0**-20,
        negative_zero=flag,
    )
    codes, stands = quantise(recipe, items_of(dtype, [0.0, 1.0, 2.0, 1.25, -1.0]), 7)
    assert stands.all()
    assert codes.tolist() == [0, 1016, 1024, 1018, -1017 if flag else -1016]
    back = reconstruct(recipe, codes, 7)
    assert back.tobytes() == items_of(dtype, [0.0, 1.0, 2.0, 1.25, -1.0]).tobytes()


def test_pointwise_counts_on_the_pattern_of_doubles() -> None:
    recipe = Recipe(
        codec=Codec.BLOCK,
        dtype=Dtype.F64,
        rule=Rule.POINTWISE,
        step=2.0**49,
        inverse=2.0**-49,
        limit=0.25,
    )
    items = np.array([1.0, -2.0, 2.0**-900, np.inf, 1e300])
    codes, stands = quantise(recipe, items, 0)
    assert codes[:2].tolist() == [1023 * 8, -1024 * 8]
    # The value itself is far above 2^30 inverses: only the code has to be small.
    assert stands.tolist() == [True, True, False, False, True]


def mix(h: int) -> int:
    h = (h ^ h >> 16) * 0x7FEB352D % 2**32
    h = (h ^ h >> 15) * 0x846CA68B % 2**32
    return h ^ h >> 16


def test_dither_is_the_hash_of_the_page() -> None:
    recipe = lossy_recipe(Rule.DITHER, Dtype.F32, 0.1, seed=0xDEADBEEF)
    for index in (0, 1, 1023, 1024, 5000, 2**32 - 1, 2**32 + 1):
        page, place = divmod(index % 2**32, 1024)
        t = mix(place * 0x9E3779B1 % 2**32 ^ 0xDEADBEEF)
        r = mix(page * 0x85EBCA6B % 2**32 ^ (0xDEADBEEF + 0xC2B2AE35) % 2**32)
        expected = (t >> 9 ^ r >> 9) * 2.0**-23 - 0.5
        assert dither(recipe, index, 1).tolist() == [expected]
        assert dither(replace(recipe, dtype=Dtype.F64), index, 1).tolist() == [expected]
        # k = floor(t + 1/2 - u): a value at its bin's u is reconstructed as itself.
        codes = np.array([4], np.int32)
        value = reconstruct(recipe, codes, index)
        assert value.tolist() == [np.float32(np.float32(3 + expected) * np.float32(recipe.step))]
        assert quantise(recipe, value, index)[0].tolist() == [4]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rule", LOSSY)
def test_zeros(dtype: Dtype, rule: Rule) -> None:
    zeros = items_of(dtype, [0.0, -0.0])
    recipe = lossy_recipe(rule, dtype, 0.1)
    assert quantise(recipe, zeros, 3)[1].tolist() == [True, False]
    recipe = replace(recipe, negative_zero=True)
    codes, stands = quantise(recipe, zeros, 3)
    assert codes.tolist() == [0, -1]
    assert stands.all()
    assert reconstruct(recipe, codes, 3).tobytes() == zeros.tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rule", LOSSY)
@pytest.mark.parametrize("flag", [False, True])
def test_what_is_not_finite_fails(dtype: Dtype, rule: Rule, flag: bool) -> None:
    items = items_of(dtype, [np.nan, np.inf, -np.inf])
    recipe = lossy_recipe(rule, dtype, 1e30 if dtype in (Dtype.BF16, Dtype.F32) else 0.3)
    if rule == Rule.POINTWISE:
        recipe = lossy_recipe(rule, dtype, 0.9)
    assert not quantise(replace(recipe, negative_zero=flag), items, 0)[1].any()


def test_the_check_is_strict() -> None:
    recipe = replace(halves_of(Rule.PLAIN, Dtype.F32), limit=0.25)
    _, stands = quantise(recipe, np.array([0.25, 0.75, 0.2], np.float32), 0)
    assert stands.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("rule", "flag", "stands"),
    [(Rule.PLAIN, False, True), (Rule.PLAIN, True, False), (Rule.SIGNS, False, False)],
)
def test_codes_from_2_to_the_30_on(rule: Rule, flag: bool, stands: bool) -> None:
    recipe = Recipe(
        codec=Codec.BLOCK,
        dtype=Dtype.F32,
        rule=rule,
        step=1.0,
        inverse=1.0,
        limit=2.0,
        negative_zero=flag,
    )
    items = np.array([2.0**30, 2.0**31, 1e30], np.float32)
    assert quantise(recipe, items, 0)[1].tolist() == [stands, False, False]
    doubles = replace(recipe, dtype=Dtype.F64)
    assert not quantise(doubles, items.astype(np.float64), 0)[1].any()


def test_a_sign_that_would_vanish_fails() -> None:
    # (1 + 1/2) x 2^-26 rounds to zero in f16, whose smallest number is 2^-24.
    recipe = Recipe(
        codec=Codec.BLOCK,
        dtype=Dtype.F16,
        rule=Rule.SIGNS,
        step=2.0**-26,
        inverse=2.0**24,
        limit=2.0**-20,
    )
    tiny = np.array([2.0**-24, -(2.0**-24)], np.float16)
    assert quantise(recipe, tiny, 0)[1].tolist() == [False, False]
    assert quantise(replace(recipe, rule=Rule.PLAIN), tiny, 0)[1].tolist() == [True, True]


def test_a_failed_item_takes_the_code_before_it() -> None:
    recipe = halves_of(Rule.PLAIN, Dtype.F32)
    items = np.array([np.nan, 1.0, np.nan, -0.0, 2.0, np.inf, 3.0], np.float32)
    codes, failed = encode_codes(recipe, items, 0, len(items))
    assert codes.tolist() == [0, 2, 2, 2, 4, 4, 6]
    assert failed.tolist() == [0, 2, 3, 5]
    codes, failed = encode_codes(recipe, items, 0, 3)
    assert codes.tolist() == [0, 2, 2, 0, 4, 4, 6]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rule", LOSSY)
@given(data=st.data())
def test_what_stands_keeps_the_bound(dtype: Dtype, rule: Rule, data: st.DataObject) -> None:
    width = 64 if dtype == Dtype.F64 else 32
    value = st.one_of(
        st.floats(width=width), st.floats(-10, 10, width=width), st.sampled_from(SPECIALS)
    )
    items = items_of(dtype, data.draw(st.lists(value, min_size=1, max_size=20)))
    limit = data.draw(st.sampled_from([1e-6, 1e-3, 0.01, 0.1, 0.5, 1.0, 1000.0]))
    slack = data.draw(st.sampled_from([1.0, 0.7, 1.6]))
    recipe = lossy_recipe(rule, dtype, limit, negative_zero=data.draw(st.booleans()))
    step = float(real_type(dtype)(recipe.step * slack))
    if rule == Rule.POINTWISE:
        step = float(max(1, min(int(step), 2**24 - 1)))
    recipe = replace(recipe, step=step, inverse=float(real_type(dtype)(1 / step)))
    first = data.draw(st.integers(0, 2**33))
    codes, stands = quantise(recipe, items, first)
    back = reconstruct(recipe, codes, first)
    check_bound(recipe, items[stands], back[stands])
    x, r = widen(dtype, items[stands]), widen(dtype, back[stands])
    assert np.isfinite(x).all()
    if rule in (Rule.SIGNS, Rule.POINTWISE):
        assert np.array_equal(np.sign(x), np.sign(r))
    zero = x == 0
    assert np.array_equal(np.signbit(x[zero]), np.signbit(r[zero]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rule", LOSSY)
@pytest.mark.parametrize("flag", [False, True])
def test_any_code_has_a_reconstruction(dtype: Dtype, rule: Rule, flag: bool) -> None:
    recipe = lossy_recipe(rule, dtype, 0.5, negative_zero=flag)
    codes = np.random.default_rng(0).integers(-(2**31), 2**31, 1000).astype(np.int32)
    codes[:4] = [-(2**31), 2**31 - 1, -1, 0]
    assert len(reconstruct(recipe, codes, 2**40)) == 1000
