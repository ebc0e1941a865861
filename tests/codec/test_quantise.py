"""Quantiser settings: representable, never looser than the bound, and seldom refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elbowroom import Bound
from elbowroom.codec.quantise import EXACT, Quantiser, settle, single, single_below
from elbowroom.codec.recipe import Codec, Dtype, Recipe, Rule

NARROW = [Dtype.F16, Dtype.BF16, Dtype.F32]
FLOATS = [*NARROW, Dtype.F64]


def plain(bound: Bound, dtype: Dtype, exponent: int = 0, dither: int | None = None) -> Quantiser:
    return settle(bound, dtype, exponent, False, dither)


def recipe_of(dtype: Dtype, quantiser: Quantiser) -> Recipe:
    return Recipe(codec=Codec.BLOCK, dtype=dtype, **quantiser._asdict())


@given(st.floats(1e-37, 1e37))
def test_single_below_is_the_float32_at_or_below(value: float) -> None:
    below = single_below(value)
    assert below == np.float32(below)
    assert below <= value < float(np.nextafter(np.float32(below), np.float32(np.inf)))


@pytest.mark.parametrize("dtype", FLOATS)
@given(
    value=st.floats(0, 1.7e308, exclude_min=True),
    exponent=st.integers(-160, 128),
    keep_sign=st.booleans(),
    negative_zero=st.booleans(),
)
def test_absolute_settings_are_valid_and_keep_the_bound(
    dtype: Dtype, value: float, exponent: int, keep_sign: bool, negative_zero: bool
) -> None:
    bound = Bound.absolute(value, keep_sign=keep_sign)
    quantiser = settle(bound, dtype, exponent, negative_zero, None)
    assert recipe_of(dtype, quantiser).fault() is None
    if quantiser is EXACT:
        assert value < (2.0**-899 if dtype == Dtype.F64 else 2.0**-99)
        return
    assert quantiser.rule == (Rule.SIGNS if keep_sign else Rule.PLAIN)
    assert quantiser.limit <= value
    assert 0.45 * quantiser.limit < quantiser.step < 2 * quantiser.limit
    assert quantiser.inverse * quantiser.step == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@given(share=st.floats(0, 1, exclude_min=True, exclude_max=True), exponent=st.integers(-1100, 1024))
def test_pointwise_settings_are_valid(dtype: Dtype, share: float, exponent: int) -> None:
    quantiser = plain(Bound.pointwise_relative(share), dtype, exponent)
    assert recipe_of(dtype, quantiser).fault() is None
    if quantiser is not EXACT:
        assert quantiser.rule == Rule.POINTWISE
        assert quantiser.step == int(quantiser.step)
        assert quantiser.limit < share
        bits = 52 if dtype == Dtype.F64 else 23
        assert quantiser.step <= min(2.0**bits, 2 * share * 2.0**bits)


@pytest.mark.parametrize("dtype", FLOATS)
def test_tiny_bounds_become_lossless_and_huge_ones_are_lowered(dtype: Dtype) -> None:
    wide = dtype == Dtype.F64
    smallest, largest = (2.0**-900, 2.0**900) if wide else (2.0**-100, 2.0**100)
    assert plain(Bound.absolute(smallest * 0.99), dtype) is EXACT
    assert plain(Bound.absolute(smallest), dtype) is not EXACT
    assert plain(Bound.absolute(1.7e308), dtype).limit == largest
    assert plain(Bound.absolute(5e-324), dtype) is EXACT


def test_lossless_and_integers_are_exact() -> None:
    assert plain(Bound.lossless(), Dtype.F32) is EXACT
    for dtype in set(Dtype) - set(FLOATS):
        assert plain(Bound.absolute(1), dtype) is EXACT


def test_dither_takes_the_seed() -> None:
    quantiser = plain(Bound.absolute(1e-3), Dtype.F32, dither=7)
    assert (quantiser.rule, quantiser.seed) == (Rule.DITHER, 7)


def test_steps_shrink_where_rounding_would_break_the_bound() -> None:
    ordinary = plain(Bound.absolute(1e-3), Dtype.F32, 0)
    assert ordinary.step == single(2 * ordinary.limit * (1 - 2.0**-10))
    noisy = plain(Bound.absolute(1e-3), Dtype.F32, 6)
    assert noisy.step < ordinary.step
    assert plain(Bound.absolute(1e-3), Dtype.F32, 60).step == single(1.5 * ordinary.limit)
    # f64 has the digits.
    assert plain(Bound.absolute(1e-3), Dtype.F64, 6).step == 2e-3 * (1 - 2.0**-10)


def bits_lost(x: torch.Tensor, step: float, limit: float) -> float:
    """Bits a value that a step costs more than 2 limit would; 40 for one that fails."""
    wide = x.float()
    codes = torch.round(wide * single(1 / step))
    back = (codes * step).to(x.dtype).float()
    failed = ((wide - back).abs() >= limit).float().mean()
    return 40 * float(failed) - math.log2(step / (2 * limit))


@pytest.mark.parametrize(("dtype", "kind"), [(2, torch.bfloat16), (1, torch.float16)])
def test_steps_of_narrow_floats_suit_their_grid(dtype: int, kind: torch.dtype) -> None:
    """Reconstructions are rounded to the narrow type: the widest step would break many bounds."""
    x = torch.randn(50_000, generator=torch.Generator().manual_seed(1)).to(kind)
    widest, chosen = [], []
    for value in np.geomspace(2e-3, 0.5, 40).tolist():
        quantiser = settle(Bound.absolute(value), dtype, 2, False, None)
        widest.append(bits_lost(x, single(quantiser.limit * 1.998), quantiser.limit))
        chosen.append(bits_lost(x, quantiser.step, quantiser.limit))
        assert chosen[-1] < widest[-1] + 0.2
    assert max(chosen) < 1.1
    assert dtype != Dtype.BF16 or np.mean(chosen) < 0.5 * np.mean(widest)


def test_pointwise_needs_room_between_patterns() -> None:
    assert plain(Bound.pointwise_relative(1e-5), Dtype.F32).step == 128
    assert plain(Bound.pointwise_relative(1e-6), Dtype.F32) is EXACT
    assert plain(Bound.pointwise_relative(2.0**-7), Dtype.BF16) is EXACT
    assert plain(Bound.pointwise_relative(2.0**-6), Dtype.BF16) is not EXACT
    assert plain(Bound.pointwise_relative(0.999), Dtype.F32).step <= 2**23


def test_pointwise_doubles_keep_codes_below_their_limit() -> None:
    # Codes of doubles stay below 2^30; the pattern of 1.0 is about 2^62.
    assert plain(Bound.pointwise_relative(1e-3), Dtype.F64) is not EXACT
    assert plain(Bound.pointwise_relative(1e-9), Dtype.F64) is EXACT
    for exponent in (-1000, 0, 1000):
        quantiser = plain(Bound.pointwise_relative(1e-6), Dtype.F64, exponent)
        pattern = math.ldexp(max(exponent + 1023, 0), 52)
        assert (quantiser is EXACT) == (
            pattern >= 2.0**30 * math.floor(2e-6 * (1 - 2**-10) * 2**52)
        )
