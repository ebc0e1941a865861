"""Spreading error over tensors so that the bytes are least (reverse water-filling).

Every tensor has a rate curve, bits against bound, measured on a sample, and a cost, the gradient
error that a unit of squared bound adds. At the least total of bits all tensors gain equally many
bits for the next unit of error; a bisection on that price meets the tolerance.

A tolerance is a limit and not a goal. What is kept stops to matter once it is little, and errors do
not: so the price has a floor, at which error has to save a good part of all bytes, until a goal for
the bytes needs more error than that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Bounds tried, relative to a tensor's spread: fine enough that the grid costs under 1 % of error.
GRID = np.exp2(np.arange(-12, 0.51, 0.25))


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """One tensor: how many values, on which scale, what their error costs."""

    count: int
    scale: float
    sample: NDArray[np.float32]
    cost: float
    """Share of the tolerance per squared bound."""

    largest: float = np.inf
    """No bound is looser."""

    known: tuple[float, float] | None = None
    """A bound at which it has been encoded, and the bits that it took."""


def rates(demand: Demand) -> NDArray[np.float64]:
    """Bits a value at every bound of the grid: the entropy of dithered codes, zeros apart."""
    values = demand.sample[np.isfinite(demand.sample)].astype(np.float64)
    if values.size == 0:
        return np.zeros(GRID.size)
    dither = np.random.default_rng(0).random(values.size)
    zero = values == 0
    out = np.empty(GRID.size)
    for place, relative in enumerate(GRID):
        step = 2 * relative * demand.scale
        codes = np.floor(values / step + dither)
        codes[zero] = np.inf
        counts = np.unique(codes, return_counts=True)[1]
        share = counts / values.size
        # Miller-Madow: a sample shows too few kinds.
        out[place] = -(share * np.log2(share)).sum() + (counts.size - 1) / (
            2 * values.size * np.log(2)
        )
    return np.minimum(np.minimum.accumulate(out), 32.0)


def bits(demand: Demand) -> NDArray[np.float64]:
    """Of all values at every bound of the grid.

    The entropy of single codes says how bits grow; a codec that looks at neighbours takes fewer of
    them, by a share that has been seen.
    """
    found = rates(demand) * demand.count
    if demand.known is None:
        return found
    bound, taken = demand.known
    expected = float(np.interp(bound / demand.scale, GRID, found))
    return found * min(max(taken / expected, 0.25), 2.0) if expected > 0 else found


def allocate(
    demands: Sequence[Demand],
    tolerance: float,
    *,
    floor: float = 0.0,
    goal_bits: float = 0.0,
) -> list[float]:
    """A bound for each demand, so that the sum of cost x bound^2 is at most the tolerance.

    Args:
        demands: Of the tensors.
        tolerance: What may be spent at most.
        floor: Bits that a unit of error has to save; less is spent where it would save fewer.
        goal_bits: While all tensors together take more than this, the floor does not count.
    """
    if not demands:
        return []
    taken = np.stack([bits(d) for d in demands])
    scale = np.array([d.scale for d in demands])[:, None]
    cost = np.array([d.cost for d in demands])[:, None]
    largest = np.array([d.largest for d in demands])
    bounds = np.minimum(GRID[None, :] * scale, largest[:, None])
    errors = cost * bounds**2

    def pick(price: float) -> NDArray[np.intp]:
        return np.argmin(taken + price * errors, axis=1)

    rows = np.arange(len(demands))

    def is_within(price: float) -> bool:
        return float(errors[rows, pick(price)].sum()) <= tolerance

    def is_more(price: float) -> bool:
        return float(taken[rows, pick(price)].sum()) > goal_bits

    least = _first(is_within)
    # The dearer error is, the more bits are taken.
    price = max(least, floor if not is_more(floor) else min(floor, _first(is_more)))
    chosen = pick(price)
    found = bounds[rows, chosen]
    total = float(errors[rows, chosen].sum())
    # What the grid left over is spread evenly, where a looser bound still saves anything.
    if price == least and 0 < total < tolerance:
        found = np.minimum(found * min(2.0**0.25, (tolerance / total) ** 0.5), largest)
    return [float(b) for b in found]


def _first(holds: Callable[[float], bool]) -> float:
    """The least price from which on it holds."""
    low, high = 1e-30, 1e30
    for _ in range(200):
        middle = float(np.sqrt(low * high))
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
