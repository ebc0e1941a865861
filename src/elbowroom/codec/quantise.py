"""From a bound to the numbers that the quantiser works with.

Every number here is a choice of the writer: the encoder checks each value against `limit` in the
decoder's arithmetic and stores what fails as it is, so a poor choice costs bytes, never accuracy.
"""

import math
import struct
from functools import lru_cache
from typing import NamedTuple

from elbowroom.codec.bound import Bound, Mode
from elbowroom.codec.recipe import Dtype, Rule

_F32 = struct.Struct("<f")


class Quantiser(NamedTuple):
    """The recipe's fields of this stage, in its order."""

    rule: Rule
    negative_zero: bool
    seed: int
    step: float
    inverse: float
    limit: float


EXACT = Quantiser(Rule.EXACT, False, 0, 0.0, 0.0, 0.0)


class _Arithmetic(NamedTuple):
    """What the rules calculate with, and what the items round to."""

    smallest: float  # bounds below are kept exactly: products of theirs could underflow
    largest: float  # bounds above are lowered to this
    noise: float  # rounding of x * inverse and k * step, as a share of x
    significand_bits: int  # of the items, if rounding to them adds an error of its own; else 0
    pattern_bits: int  # below the exponent, in the pattern that pointwise divides


_SINGLE = _Arithmetic(2.0**-100, 2.0**100, 2.0**-21, 0, 23)
_ARITHMETIC = {
    Dtype.F16: _SINGLE._replace(significand_bits=11),
    Dtype.BF16: _SINGLE._replace(significand_bits=8),
    Dtype.F32: _SINGLE,
    Dtype.F64: _Arithmetic(2.0**-900, 2.0**900, 2.0**-50, 0, 52),
}


# How the items of a bell curve lie in the binades below the largest of a small sample.
_BINADES = (0.03, 0.2, 0.3, 0.22, 0.12)


def single(value: float) -> float:
    """The float32 nearest to value."""
    return _F32.unpack(_F32.pack(value))[0]


def single_below(value: float) -> float:
    """The largest float32 that is not above value, which must be positive and in range."""
    nearest = single(value)
    if nearest <= value:
        return nearest
    return _F32.unpack((int.from_bytes(_F32.pack(nearest), "little") - 1).to_bytes(4, "little"))[0]


@lru_cache(maxsize=4096)
def settle(
    bound: Bound, dtype: int, exponent: int, negative_zero: bool, dither: int | None
) -> Quantiser:
    """The quantiser for items below 2^exponent in magnitude, as far as a sample has shown.

    Range-relative bounds must have become absolute ones.
    """
    if bound.mode == Mode.LOSSLESS or dtype > Dtype.F64:
        return EXACT
    arithmetic = _ARITHMETIC[Dtype(dtype)]
    if bound.mode == Mode.POINTWISE_RELATIVE:
        return _pointwise(bound.value, Dtype(dtype), arithmetic, exponent, negative_zero)
    value = min(bound.value, arithmetic.largest)
    if value < arithmetic.smallest:
        return EXACT
    wide = dtype == Dtype.F64
    limit = value if wide else single_below(value)
    if limit < arithmetic.smallest:
        return EXACT
    step = 2 * limit * (1 - _shrink(limit, arithmetic, exponent))
    if arithmetic.significand_bits:
        top = math.ldexp(1.0, exponent - arithmetic.significand_bits)
        step = _step_on_grid(
            step, [(share, limit, top * 2.0**-i) for i, share in enumerate(_BINADES)]
        )
    step = step if wide else single(step)
    inverse = 1 / step if wide else single(1 / step)
    if dither is not None:
        rule, seed = Rule.DITHER, dither
    else:
        rule, seed = Rule.SIGNS if bound.keep_sign else Rule.PLAIN, 0
    return Quantiser(rule, negative_zero, seed, step, inverse, limit)


def _shrink(limit: float, arithmetic: _Arithmetic, exponent: int) -> float:
    """How much narrower than 2 limit a step is, so that rounding seldom breaks the bound."""
    # Noise and limit are far apart for f64 values of opposite size: exponents, not numbers.
    mantissa, scale = math.frexp(arithmetic.noise / limit)
    noise = math.ldexp(mantissa, min(scale + exponent, 0))
    return max(2.0**-10, min(2.0**-2, noise))


def _step_on_grid(step: float, groups: list[tuple[float, float, float]]) -> float:
    """The step that costs fewest bits when reconstructions are rounded to the items' own grid.

    `groups` are (share of the items, limit, spacing u of their grid). x and its reconstruction r
    are multiples of u, so |x - r| < limit means |x - r| ≤ m u with m = ceil(limit / u) - 1, and
    that is so whenever k step is nearer than (m + 1/2) u to x: no item fails if
    step ≤ (2 m + 1) u. A wider step makes a share of the items fail, at 40 bits each.
    """
    safe = [
        (share, (2 * math.ceil(limit / spacing) - 1) * spacing * (1 - 2.0**-10))
        for share, limit, spacing in groups
    ]

    def cost(candidate: float) -> float:
        failed = sum(share * max(0.0, 1 - width / candidate) for share, width in safe)
        return 40 * failed - math.log2(candidate)

    return min([step, *(width for _, width in safe if width < step)], key=cost)


def _pointwise(
    share: float, dtype: Dtype, arithmetic: _Arithmetic, exponent: int, negative_zero: bool
) -> Quantiser:
    """Neighbouring patterns differ by at most 2^-bits of their value; a step is so many of them."""
    bits = arithmetic.pattern_bits
    limit = share * (1 - 2.0**-20)
    step = min(2 * share * (1 - 2.0**-10) * 2.0**bits, 2.0**bits)
    if dtype == Dtype.F64:
        # Codes of doubles stay below 2^30: where they would not, every item would fail.
        if step < 1 or (max(exponent + 1023, 0) << bits) >= math.floor(step) << 30:
            return EXACT
        step = math.floor(step)
        return Quantiser(Rule.POINTWISE, negative_zero, 0, float(step), 1 / step, limit)
    if arithmetic.significand_bits:
        # Seen from the pattern, the grid is the same for all items, and the limit grows from
        # `share` to twice that along each binade.
        spacing = 2.0 ** (bits + 1 - arithmetic.significand_bits)
        if share * 2.0**bits <= spacing:
            return EXACT
        places = [(i + 0.5) / 8 for i in range(8)]
        step = _step_on_grid(
            step, [(1 / 8, share * (1 + place) * 2.0**bits, spacing) for place in places]
        )
    else:
        # A pattern as f32, times the inverse, is off by up to 192 patterns; by fewer if the
        # inverse is exact, as that of a power of two is. Below 128 nothing is gained.
        if step < 160:
            return EXACT
        step = max(step - 192, 2.0 ** math.floor(math.log2(step - 32)))
    step = math.floor(step)
    return Quantiser(Rule.POINTWISE, negative_zero, 0, float(step), single(1 / step), single(limit))
