"""The lossy rules: values to codes with the check that makes a code stand, and codes to values."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec.backends.reference.numbers import (
    Items,
    narrow,
    nearest_int,
    real_type,
    widen,
    wrap,
)
from elbowroom.codec.recipe import Dtype, Recipe, Rule

_LARGEST = 2.0**30


def dither(recipe: Recipe, first: int, count: int) -> NDArray[Any]:
    """The known random shifts in [-1/2, 1/2) of the items from `first` on."""
    index = (np.arange(count, dtype=np.uint64) + np.uint64(first)).astype(np.uint32)
    place, page = index % np.uint32(1024), index // np.uint32(1024)
    other = np.uint32((recipe.seed + 0xC2B2AE35) % 2**32)
    t = _mix((place * np.uint32(0x9E3779B1)) ^ np.uint32(recipe.seed))
    r = _mix((page * np.uint32(0x85EBCA6B)) ^ other)
    real = real_type(recipe.dtype)
    return ((t ^ r) >> np.uint32(9)).astype(real) * real(2.0**-23) - real(0.5)


def _mix(h: NDArray[np.uint32]) -> NDArray[np.uint32]:
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D)
    h = (h ^ (h >> np.uint32(15))) * np.uint32(0x846CA68B)
    return h ^ (h >> np.uint32(16))


def _shift(recipe: Recipe, first: int, count: int) -> NDArray[Any]:
    """Where in its bin, of width 1, a code's reconstruction lies."""
    if recipe.rule == Rule.DITHER:
        return dither(recipe, first, count)
    return np.full(count, 0.5, dtype=real_type(recipe.dtype))


def reconstruct(recipe: Recipe, codes: NDArray[np.int32], first: int) -> Items:
    """The items that codes mean; `first` is the index of the first in the whole array."""
    real = real_type(recipe.dtype)
    code = codes.astype(np.int64)
    k = np.where((code < 0) & recipe.negative_zero, code + 1, code)
    with np.errstate(all="ignore"):
        if recipe.rule == Rule.PLAIN:
            values = k.astype(real) * real(recipe.step)
        elif recipe.rule == Rule.POINTWISE:
            pattern, sign = (np.uint64, 63) if real is np.float64 else (np.uint32, 31)
            bits = (np.abs(k).astype(np.uint64) * np.uint64(int(recipe.step))).astype(pattern)
            bits |= (code < 0).astype(pattern) << pattern(sign)
            values = bits.view(real)
        else:
            k = np.where(code > 0, k - 1, k)
            values = (k.astype(real) + _shift(recipe, first, len(codes))) * real(recipe.step)
            values = np.where(code == 0, real(0.0), values)
        if recipe.negative_zero:
            values = np.where(code == -1, real(-0.0), values)
        return narrow(recipe.dtype, values)


def _bins(recipe: Recipe, x: NDArray[Any], first: int) -> NDArray[np.int64]:
    """The number k of each value's bin, with the sign of the value."""
    real = real_type(recipe.dtype)
    inverse = real(recipe.inverse)
    if recipe.rule == Rule.PLAIN:
        return nearest_int(x * inverse)
    if recipe.rule == Rule.POINTWISE:
        pattern = np.int64 if real is np.float64 else np.int32
        k = nearest_int(np.abs(x).view(pattern).astype(real) * inverse)
        return np.where(np.signbit(x), -k, k)
    moved = x * inverse
    if recipe.rule == Rule.DITHER:
        moved = moved + (real(0.5) - dither(recipe, first, len(x)))
    return nearest_int(np.floor(moved))


def _stands(
    recipe: Recipe, x: NDArray[Any], k: NDArray[np.int64], r: NDArray[Any]
) -> NDArray[np.bool_]:
    """The check: does reconstruction r keep value x within the limit, whatever k claims."""
    real = real_type(recipe.dtype)
    double = recipe.dtype == Dtype.F64
    limit = real(recipe.limit)
    error = np.abs(x - r)
    if recipe.rule == Rule.POINTWISE:
        smallest = real(2.0**-900 if double else 2.0**-100)
        stands = (error < limit * np.abs(x)) & (np.abs(x) > smallest) & np.isfinite(x)
        # Before its sign was put on, k was positive.
        stands &= np.where(np.signbit(x), -k, k) > 0
        if double:
            stands &= np.abs(k) < _LARGEST
        return stands
    stands = error < limit
    if double or recipe.negative_zero or recipe.rule != Rule.PLAIN:
        stands &= np.abs(x * real(recipe.inverse)) < _LARGEST
    if recipe.rule in (Rule.SIGNS, Rule.DITHER):
        stands &= r != 0
    if recipe.rule == Rule.SIGNS:
        stands &= np.signbit(r) == np.signbit(x)
    return stands


def quantise(
    recipe: Recipe, items: Items, first: int
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Codes of the items and which of them stand; the codes of the others mean nothing."""
    x = widen(recipe.dtype, items)
    with np.errstate(all="ignore"):
        k = _bins(recipe, x, first)
        code = k
        if recipe.rule in (Rule.SIGNS, Rule.DITHER):
            code = np.where(k >= 0, k + 1, k)
        if recipe.negative_zero:
            code = np.where(k < 0, code - 1, code)
        codes = wrap(code)
        r = widen(recipe.dtype, reconstruct(recipe, codes, first))
        stands = _stands(recipe, x, k, r)
    zero = x == 0
    minus_zero = zero & np.signbit(x)
    codes = np.where(zero, np.int32(0), codes)
    stands |= zero
    if recipe.negative_zero:
        codes = np.where(minus_zero, np.int32(-1), codes)
    else:
        stands &= ~minus_zero
    return codes, stands
