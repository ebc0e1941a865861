"""Every bit pattern of a float type through the native quantiser, held against its promise."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec.backends import native
from elbowroom.codec.bound import Bound, Mode
from elbowroom.codec.quantise import settle
from elbowroom.codec.recipe import Codec, Dtype, Predictor, Recipe, Rule

PATTERNS = 1 << 32
SLAB = 1 << 24
SLABS = PATTERNS // SLAB
PIECE = 1 << 18  # comparing works on pieces that stay in the caches

Patterns = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to quantise; `exponent` is that of the largest value a writer would have seen."""

    name: str
    bound: Bound
    exponent: int = 8
    negative_zero: bool = False
    dither: int | None = None
    predictor: Predictor = Predictor.NONE

    def recipe(self, dtype: Dtype) -> Recipe:
        """The recipe that a writer settles on, without its way out to raw storage."""
        chosen = settle(self.bound, dtype, self.exponent, self.negative_zero, self.dither)
        return Recipe(codec=Codec.BLOCK, dtype=dtype, method=self.predictor, **chosen._asdict())


CASES = [
    Case(name="plain", bound=Bound.absolute(1e-3)),
    Case(
        name="plain, negative zeros",
        bound=Bound.absolute(1e-3),
        negative_zero=True,
        predictor=Predictor.LEFT,
    ),
    Case(name="plain, tiny", bound=Bound.absolute(2.0**-100), exponent=-90),
    Case(name="plain, huge", bound=Bound.absolute(1e30), exponent=128),
    Case(name="signs", bound=Bound.absolute(1e-2, keep_sign=True)),
    Case(
        name="signs, negative zeros",
        bound=Bound.absolute(0.3, keep_sign=True),
        negative_zero=True,
        predictor=Predictor.LEFT,
    ),
    Case(name="dither", bound=Bound.absolute(1e-2), dither=12345),
    Case(name="pointwise", bound=Bound.pointwise_relative(1e-2)),
    Case(
        name="pointwise, fine",
        bound=Bound.pointwise_relative(2e-5),
        negative_zero=True,
        predictor=Predictor.LEFT,
    ),
]


def decoded(recipe: Recipe, patterns: Patterns) -> Patterns:
    """The patterns after encoding and decoding."""
    packed = recipe.pack()
    items = patterns.size
    segments, directory = native.encode(packed, patterns.ctypes.data, items, 1)
    result = np.full_like(patterns, 0x55)
    native.decode(packed, segments, directory, items, result.ctypes.data, 1)
    return result


def numbers(patterns: Patterns, dtype: Dtype) -> NDArray[np.float64]:
    """The values of patterns, exactly."""
    if dtype == Dtype.BF16:
        patterns, dtype = patterns.astype(np.uint32) << 16, Dtype.F32
    floats = {Dtype.F16: np.float16, Dtype.F32: np.float32, Dtype.F64: np.float64}
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return patterns.view(floats[dtype]).astype(np.float64)


def broken(case: Case, dtype: Dtype, before: Patterns, after: Patterns) -> Patterns:
    """Those of the patterns before that did not come back as promised."""
    x, y = numbers(before, dtype), numbers(after, dtype)
    bound = case.bound
    with np.errstate(all="ignore"):
        if bound.mode == Mode.POINTWISE_RELATIVE:
            # Below the bound by more than this product's rounding.
            allowed = bound.value * np.abs(x)
        else:
            allowed = np.float64(bound.value)
        difference = x - y
        size = np.abs(difference)
        good = size < allowed
        draw = size == allowed
        if draw.any():
            # Knuth's two-sum: what the rounded difference leaves out decides.
            moved = difference - x
            rest = (x - (difference - moved)) + (-y - moved)
            good |= draw & ~(np.where(difference < 0, -rest, rest) > 0)
        if bound.keep_sign or bound.mode == Mode.POINTWISE_RELATIVE:
            good &= (y != 0) & (np.signbit(x) == np.signbit(y))
    # What is no ordinary number, and both zeros, come back bit for bit.
    good &= np.isfinite(x) & (x != 0)
    return before[~(good | (before == after))]


def check(case: Case, dtype: Dtype, patterns: Patterns) -> str | None:
    """Run patterns through the quantiser; say which promise was broken, if any."""
    recipe = case.recipe(dtype)
    after = decoded(recipe, patterns)
    for start in range(0, patterns.size, PIECE):
        here = slice(start, start + PIECE)
        wrong = broken(case, dtype, patterns[here], after[here])
        if wrong.size:
            index = start + int(np.flatnonzero(patterns[here] == wrong[0])[0])
            return (
                f"{case.name}: the {dtype.name} pattern {int(wrong[0]):#x} came back as "
                f"{int(after[index]):#x}, {wrong.size} such in the piece; {recipe}"
            )
    return None


def quantises(case: Case, dtype: Dtype) -> bool:
    """Whether a type is so coarse, or a bound so fine, that a writer keeps everything exactly."""
    return case.recipe(dtype).rule != Rule.EXACT


def slab(number: int) -> NDArray[np.uint32]:
    """A 256th of all float32 patterns."""
    return np.arange(number * SLAB, (number + 1) * SLAB, dtype=np.uint32)


def spread_order() -> Iterator[int]:
    """All slabs, so that any number of the first are spread over the whole range."""
    width = SLABS.bit_length() - 1
    for number in range(SLABS):
        yield int(f"{number:0{width}b}"[::-1], 2)


def sample(part: int) -> NDArray[np.uint32]:
    """A share of all float32 patterns: one whole block in so many, and those around every edge."""
    starts = np.arange(0, PATTERNS, 64 * part, dtype=np.uint64)
    blocks = (starts[:, None] + np.arange(64, dtype=np.uint64)).reshape(-1)
    exponents = np.arange(0, PATTERNS, 1 << 23, dtype=np.uint64)
    edges = (exponents[:, None] + np.arange(-32, 32).astype(np.uint64)).reshape(-1)
    return np.concatenate([blocks, edges % PATTERNS]).astype(np.uint32)
