"""Checks that a decoded array keeps its bound, a piece at a time, so that memory stays small."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elbowroom.codec.bound import Bound, Mode

Array = torch.Tensor | NDArray[Any]

PIECE_ITEMS = 2**17  # what is made of a piece stays in the processor's cache


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How far the values moved, and whether they were allowed to."""

    holds: bool
    largest_error: float  # |x - y|; a share of |x| when the bound is pointwise-relative
    allowed: float  # in the same units; 0 when nothing may change

    @property
    def share(self) -> float:
        """The part of the allowance that was used; infinite when none was given."""
        if self.allowed:
            return self.largest_error / self.allowed
        return math.inf if self.largest_error else 0.0


def verify(x: Array, y: Array, bound: Bound) -> Verdict:
    """Compare an array with what came back."""
    if isinstance(x, torch.Tensor):
        exact = not x.is_floating_point()
    else:
        exact = x.dtype.kind != "f"
    if exact:
        bound = Bound.lossless()
    elif bound.mode == Mode.RANGE_RELATIVE:
        # The range belongs to the whole array; a piece has another.
        bound = Bound.absolute(bound.product(*extent(x)), keep_sign=bound.keep_sign)
    holds, largest = True, 0.0
    for before, after in zip(_pieces(x), _pieces(y), strict=True):
        if (error := _plain_error(before, after, bound)) is not None:
            largest = max(largest, error)
            continue
        holds = holds and bound.holds(before, after)
        largest = max(largest, bound.largest_error(before, after))
    return Verdict(holds=holds, largest_error=largest, allowed=bound.value)


def _plain_error(x: Array, y: Array, bound: Bound) -> float | None:
    """Return the largest error where there can be no doubt, None where `Bound.holds` has to judge.

    No doubt: finite floats under an absolute bound without signs, clearly below it, zeros kept.
    """
    if bound.mode != Mode.ABSOLUTE or bound.keep_sign:
        return None
    before, after = as_floats(x).astype(np.float64), as_floats(y).astype(np.float64)
    zero = before == 0
    if not np.array_equal(before[zero].view(np.uint64), after[zero].view(np.uint64)):
        return None
    with np.errstate(invalid="ignore"):
        error = float(np.abs(before - after).max(initial=0.0))
    # Rounding is monotone: what is below the bound after it was so before. NaN is not below.
    return error if error < bound.value else None


def extent(x: Array) -> tuple[float, float]:
    """Return the smallest and the largest finite value, zeros when there is none."""
    low, high = math.inf, -math.inf
    for piece in _pieces(x):
        values = as_floats(piece).astype(np.float64)
        values = values[np.isfinite(values)]
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    return (low, high) if low <= high else (0.0, 0.0)


def as_floats(x: Array) -> NDArray[Any]:
    """Return numpy floats; bfloat16, which numpy lacks, becomes float32."""
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu()
        return (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    return x


def _pieces(x: Array) -> Iterator[Array]:
    flat = x.reshape(-1)
    for start in range(0, flat.shape[0], PIECE_ITEMS):
        yield flat[start : start + PIECE_ITEMS]
