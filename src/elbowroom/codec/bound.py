"""The bound: how far a value may move."""

import math
import sys
from dataclasses import dataclass
from enum import IntEnum
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elbowroom.codec.float_env import in_default_float_env
from elbowroom.errors import InvalidArgument

Array = torch.Tensor | NDArray[Any]


class Mode(IntEnum):
    """What a bound is relative to. Numbers are part of the format: docs/format.md."""

    LOSSLESS = 0
    ABSOLUTE = 1
    RANGE_RELATIVE = 2
    POINTWISE_RELATIVE = 3


@dataclass(frozen=True, slots=True, repr=False)
class Bound:
    """How far a finite value may move; NaN, infinities and zeros always come back as they were.

    Make one with `Bound.absolute`, `Bound.range_relative`, `Bound.pointwise_relative` or
    `Bound.lossless`. A value of 0 means lossless. Integers and bools are always kept exactly.
    """

    mode: Mode
    value: float = 0.0
    keep_sign: bool = False

    @in_default_float_env
    def __post_init__(self) -> None:
        """Check mode and value and let 0 mean lossless."""
        value = self.value
        if not isinstance(self.mode, Mode):
            raise InvalidArgument(
                f"a bound must say what it is relative to, got {self.mode!r}: use Bound.absolute, "
                "Bound.range_relative, Bound.pointwise_relative or Bound.lossless"
            )
        # The first test is for speed: asking an abstract base class is slow.
        if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
            raise InvalidArgument(
                f"a bound must be a number, got {value!r} ({type(value).__name__}): "
                "pass a float such as 1e-3"
            )
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and number >= 0):
            raise InvalidArgument(
                f"a bound must be finite and positive (0 means lossless), got {number!r}: "
                "pass how far a value may move, such as 1e-3"
            )
        if self.mode == Mode.POINTWISE_RELATIVE and number >= 1:
            raise InvalidArgument(
                f"a pointwise-relative bound must be below 1, got {number!r}: "
                "pass the share of itself that a value may move, such as 1e-2"
            )
        lossless = self.mode == Mode.LOSSLESS or number == 0
        object.__setattr__(self, "mode", Mode.LOSSLESS if lossless else self.mode)
        object.__setattr__(self, "value", 0.0 if lossless else number)
        # The other modes keep signs anyway.
        optional = self.mode in (Mode.ABSOLUTE, Mode.RANGE_RELATIVE)
        object.__setattr__(self, "keep_sign", bool(self.keep_sign) and optional)

    @classmethod
    def absolute(cls, value: float, *, keep_sign: bool = False) -> "Bound":
        """|x - y| ≤ value; with `keep_sign`, no value changes its sign or becomes zero."""
        return cls(Mode.ABSOLUTE, value, keep_sign)

    @classmethod
    def range_relative(cls, value: float, *, keep_sign: bool = False) -> "Bound":
        """|x - y| ≤ value times the array's largest minus smallest finite value."""
        return cls(Mode.RANGE_RELATIVE, value, keep_sign)

    @classmethod
    def pointwise_relative(cls, value: float) -> "Bound":
        """|x - y| ≤ value |x|; signs are always kept."""
        return cls(Mode.POINTWISE_RELATIVE, value)

    @classmethod
    def lossless(cls) -> "Bound":
        """Every bit comes back, those of NaNs included."""
        return cls(Mode.LOSSLESS)

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the checks above, also when it was pickled.
        return Bound, (self.mode, self.value, self.keep_sign)

    def __repr__(self) -> str:
        value = "" if self.mode == Mode.LOSSLESS else repr(self.value)
        sign = ", keep_sign=True" if self.keep_sign else ""
        return f"Bound.{self.mode.name.lower()}({value}{sign})"

    @in_default_float_env
    def resolve(self, low: float, high: float) -> float:
        """The absolute bound that a range-relative one means for values from low to high."""
        # Two roundings may have raised the product; two steps down undo more than that.
        down = math.nextafter(math.nextafter(self.product(low, high), 0.0), 0.0)
        return max(down, 0.0)

    @in_default_float_env
    def product(self, low: float, high: float) -> float:
        """The value times the range, as `holds` allows it; encoders use `resolve`."""
        span = high - low
        if math.isinf(span):
            # Halves first: the range of float64 values may exceed the largest float64.
            return min((high * 0.5 - low * 0.5) * self.value * 2, sys.float_info.max)
        return min(span * self.value, sys.float_info.max)

    @in_default_float_env
    def holds(self, x: Array, y: Array) -> bool:
        """Whether y is what decoding may return for x.

        Differences are compared without rounding; only the products of relative bounds are
        rounded to float64. NaN must come back as NaN, an infinity as itself, a zero as the same
        zero, and what is lossless (integers too) bit for bit.
        """
        before, after = _pair(x, y)
        if np.array_equal(_patterns(x), _patterns(y)):
            return True
        if self.mode == Mode.LOSSLESS or before.dtype != np.float64:
            return False
        finite = np.isfinite(before)
        special = ~finite | (before == 0)
        kept = np.isnan(before) & np.isnan(after)
        kept |= (before == after) & (np.signbit(before) == np.signbit(after))
        if not bool(kept[special].all()):
            return False
        x64, y64 = before[~special], after[~special]
        if self.mode == Mode.POINTWISE_RELATIVE:
            allowed = self.value * np.abs(x64)
        else:
            allowed = np.float64(self._absolute(before[finite]))
        signed = self.keep_sign or self.mode == Mode.POINTWISE_RELATIVE
        if signed and not bool((np.sign(x64) == np.sign(y64)).all()):
            return False
        with np.errstate(all="ignore"):
            # Knuth's two-sum: difference + rest is x - y exactly, and decides a draw.
            difference = x64 - y64
            moved = difference - x64
            rest = (x64 - (difference - moved)) + (-y64 - moved)
            size = np.abs(difference)
            beyond = np.where(difference < 0, -rest, rest) > 0
            return bool(((size < allowed) | ((size == allowed) & ~beyond)).all())

    @in_default_float_env
    def largest_error(self, x: Array, y: Array) -> float:
        """The largest error over the finite values of x, in the units of the bound.

        That is |x - y| for absolute and lossless bounds, a share of the range or of |x| for the
        relative ones; infinite where a finite value came back as something else.
        """
        before, after = _pair(x, y)
        if before.dtype != np.float64:
            differs = before != after
            gaps = np.abs(before[differs].astype(np.float64) - after[differs].astype(np.float64))
            return float(np.maximum(gaps, 1.0).max(initial=0.0))
        finite = np.isfinite(before)
        x64, y64 = before[finite], after[finite]
        with np.errstate(all="ignore"):
            error = np.where(np.isfinite(y64), np.abs(x64 - y64), np.inf)
            if self.mode == Mode.POINTWISE_RELATIVE:
                error = np.where(error == 0, 0.0, error / np.abs(x64))
            elif self.mode == Mode.RANGE_RELATIVE:
                low, high = _extent(x64)
                error = np.where(error == 0, 0.0, error * 0.5 / (high * 0.5 - low * 0.5))
        return float(error.max(initial=0.0))

    def _absolute(self, values: NDArray[np.float64]) -> float:
        if self.mode == Mode.RANGE_RELATIVE:
            return self.product(*_extent(values))
        return self.value


def _extent(values: NDArray[np.float64]) -> tuple[float, float]:
    return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)


def _pair(x: Array, y: Array) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two arrays of one type and shape; floats as float64, everything else as it is."""
    if type(x) is not type(y) and isinstance(x, torch.Tensor) != isinstance(y, torch.Tensor):
        raise InvalidArgument(
            f"two arrays of one kind were expected, got {type(x).__name__} and "
            f"{type(y).__name__}: convert one of them"
        )
    if x.dtype != y.dtype or tuple(x.shape) != tuple(y.shape):
        raise InvalidArgument(
            f"two arrays of one dtype and shape were expected, got {x.dtype} {tuple(x.shape)} "
            f"and {y.dtype} {tuple(y.shape)}: compare what was encoded with what was decoded"
        )
    return _numbers(x), _numbers(y)


def _numbers(x: Array) -> NDArray[Any]:
    if isinstance(x, torch.Tensor):
        # By numpy, on this thread: those of torch may flush denormals.
        x = x.detach().cpu().resolve_neg()
        if x.dtype == torch.bfloat16:
            wide = np.left_shift(x.view(torch.int16).numpy(), 16, dtype=np.int32)
            x = np.asarray(wide).view(np.float32)
        else:
            x = x.numpy()
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return x.astype(np.float64) if x.dtype.kind == "f" else x


def _patterns(x: Array) -> NDArray[Any]:
    """The bits of every item, so that NaNs compare."""
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu().resolve_neg()
        return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy().view(_word(x))
    return x.astype(x.dtype.newbyteorder("=")).view(_word(x))


def _word(x: Array) -> str:
    return f"u{x.dtype.itemsize}"
