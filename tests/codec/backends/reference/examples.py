"""Recipes and awkward values that several tests of the reference backend use."""

from fractions import Fraction
from typing import Any

import numpy as np

from elbowroom.codec.backends.reference.numbers import NUMPY_TYPES, Items, narrow, real_type, widen
from elbowroom.codec.recipe import Codec, Dtype, Recipe, Rule

FLOATS = (Dtype.F16, Dtype.BF16, Dtype.F32, Dtype.F64)
LOSSY = (Rule.PLAIN, Rule.SIGNS, Rule.DITHER, Rule.POINTWISE)
SPECIALS = (
    *(0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf),
    *(1e-45, -1e-45, 6e-8, -6e-8, 1e-310, 2.0**-101, 1e30, -1e30, 65504.0, 65520.0, 3.4e38),
)


def lossy_recipe(
    rule: Rule, dtype: Dtype, limit: float, codec: Codec = Codec.BLOCK, **fields: Any
) -> Recipe:
    """A recipe with bins nearly as wide as the limit permits."""
    real = real_type(dtype)
    limit = float(real(limit))
    if rule == Rule.POINTWISE:
        step = float(real(max(1, int(limit * 2.0 ** (52 if dtype == Dtype.F64 else 23)))))
    else:
        step = float(real(1.98 * limit))
    if rule == Rule.DITHER:
        fields.setdefault("seed", 12345)
    return Recipe(
        codec=codec,
        dtype=dtype,
        rule=rule,
        step=step,
        inverse=float(real(1 / step)),
        limit=limit,
        **fields,
    )


def items_of(dtype: Dtype, values: Any) -> Items:
    """Numbers as items of a float type."""
    with np.errstate(all="ignore"):
        return narrow(dtype, np.asarray(values, dtype=np.float64).astype(real_type(dtype)))


def noise(dtype: Dtype, n: int, seed: int = 0) -> Items:
    """Items of any type: smooth or random, every seventh float a special one."""
    rng = np.random.default_rng(seed)
    if dtype == Dtype.BOOL:
        return rng.integers(0, 2, n).astype(np.bool_)
    if not dtype.is_float:
        return rng.integers(0, 2**64, n, dtype=np.uint64).astype(NUMPY_TYPES[dtype])
    values = np.cumsum(rng.normal(size=n))
    values[::7] = rng.choice(np.array(SPECIALS), len(values[::7]))
    return items_of(dtype, values)


def check_bound(recipe: Recipe, items: Items, back: Items) -> None:
    """Assert, in exact arithmetic, that the bound holds; what is not finite is untouched."""
    finite = np.isfinite(widen(recipe.dtype, items))
    assert items[~finite].tobytes() == back[~finite].tobytes()
    before = widen(recipe.dtype, items[finite]).astype(np.float64).tolist()
    after = widen(recipe.dtype, back[finite]).astype(np.float64).tolist()
    limit = Fraction(recipe.limit)
    for x, r in zip(before, after, strict=True):
        share = abs(Fraction(x)) if recipe.rule == Rule.POINTWISE else 1
        assert abs(Fraction(x) - Fraction(r)) <= limit * share, (x, r)
