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

# Where bits are counted: between two of these places they fall evenly, to a thirtieth of a bit.
_COUNTED = np.r_[0:32:4, 32 : GRID.size : 2]


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
    steps = 2 * GRID[_COUNTED, None] * demand.scale
    codes = np.floor(values / steps + dither)
    codes -= codes.min(axis=1, keepdims=True)
    # Zeros are a code of their own.
    codes[:, values == 0] = codes.max(axis=1, keepdims=True) + 1
    rows, counts = _count(codes)
    share = counts / values.size
    found = -np.bincount(rows, share * np.log2(share))
    # Miller-Madow: a sample shows too few kinds.
    found += (np.bincount(rows) - 1) / (2 * values.size * np.log(2))
    found = np.minimum(np.minimum.accumulate(found), 32.0)
    return np.interp(np.arange(GRID.size), _COUNTED, found)


def _count(codes: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """How often each code of a row comes, and in which row; by a table where ranges are small."""
    ends = codes.max(axis=1).cumsum() + np.arange(1, len(codes) + 1)
    if ends[-1] < _TABLE:
        codes[1:] += ends[:-1, None]
        table = np.bincount(codes.ravel().astype(np.intp))
        places = np.flatnonzero(table)
        return np.searchsorted(ends, places, side="right"), table[places]
    found = [np.unique(row, return_counts=True)[1] for row in codes]
    return np.repeat(np.arange(len(codes)), [len(each) for each in found]), np.concatenate(found)


_TABLE = 1 << 18


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
    each: NDArray[np.float64] | None = None,
) -> list[float]:
    """A bound for each demand, so that the sum of cost x bound^2 is at most the tolerance.

    Args:
        demands: Of the tensors.
        tolerance: What may be spent at most.
        floor: Bits that a unit of error has to save; less is spent where it would save fewer.
        goal_bits: While all tensors together take more than this, the floor does not count.
        each: A row for each demand and a column for each further limit: in every column the sum of
            these x bound^2 is at most one.
    """
    if not demands:
        return []
    menu = _Menu(demands, tolerance, floor, goal_bits)
    if each is None or not each.size:
        each = np.zeros((len(demands), 1))
    price, chosen = menu.choose(np.zeros(len(demands)))
    multipliers = np.zeros(each.shape[1])
    # Where bits fall by the logarithm of the error, a limit alone is met by this multiplier.
    counts = np.array([d.count for d in demands], np.float64)
    start = counts @ (each > 0) / (2 * np.log(2))
    for _ in range(_ROUNDS):
        used = menu.squares(chosen) @ each
        is_new = (used > 1) & (multipliers == 0)
        if not is_new.any() and bool(np.all(np.abs(used[multipliers > 0] - 0.9) <= 0.1)):
            break
        multipliers *= np.clip(used, 0.5, 4.0)
        multipliers[multipliers < _LEAST * start] = 0.0
        multipliers[is_new] = start[is_new]
        price, chosen = menu.choose(each @ multipliers)
    found = menu.squares(chosen)
    total = float(menu.costs @ found)
    # What the grid left over is spread evenly, where a looser bound still saves anything.
    if menu.is_least(price) and 0 < total < tolerance:
        found = np.minimum(found * min(2**0.5, tolerance / total), menu.largest**2)
    used = found @ each
    # What is above a limit still comes off all that have a part in it.
    relief = np.where(each > 0, np.maximum(used, 1.0)[None, :], 1.0).max(1)
    return [float(b) for b in np.sqrt(found / relief)]


# The multipliers of limits are near their end by then; what is left is scaled.
_ROUNDS = 16
# A multiplier that has fallen to this share of its start belongs to a limit that others meet.
_LEAST = 1e-3


class _Menu:
    """Bits and errors of every demand at every bound of the grid."""

    def __init__(
        self, demands: Sequence[Demand], tolerance: float, floor: float, goal_bits: float
    ) -> None:
        self._taken = np.stack([bits(d) for d in demands])
        scale = np.array([d.scale for d in demands])[:, None]
        self.costs = np.array([d.cost for d in demands])
        self.largest = np.array([d.largest for d in demands])
        self._squares = np.minimum(GRID[None, :] * scale, self.largest[:, None]) ** 2
        self._errors = self.costs[:, None] * self._squares
        self._tolerance, self._floor, self._goal_bits = tolerance, floor, goal_bits
        self._rows = np.arange(len(demands))
        self._least = 0.0

    def squares(self, chosen: NDArray[np.intp]) -> NDArray[np.float64]:
        """Squared bounds."""
        return self._squares[self._rows, chosen]

    def is_least(self, price: float) -> bool:
        """Whether error costs as little as the tolerance allows."""
        return price == self._least

    def choose(self, extra: NDArray[np.float64]) -> tuple[float, NDArray[np.intp]]:
        """The price of error, and the places in the grid; `extra` are bits per squared bound."""
        fixed = self._taken + extra[:, None] * self._squares

        def pick(price: float) -> NDArray[np.intp]:
            return np.argmin(fixed + price * self._errors, axis=1)

        def is_within(price: float) -> bool:
            return float(self._errors[self._rows, pick(price)].sum()) <= self._tolerance

        def is_more(price: float) -> bool:
            return float(self._taken[self._rows, pick(price)].sum()) > self._goal_bits

        self._least = _first(is_within)
        floor = self._floor
        # The dearer error is, the more bits are taken.
        price = max(self._least, floor if not is_more(floor) else min(floor, _first(is_more)))
        return price, pick(price)


def _first(holds: Callable[[float], bool]) -> float:
    """The least price from which on it holds."""
    low, high = -30.0, 30.0
    for _ in range(22):
        middle = (low + high) / 2
        if holds(10**middle):
            high = middle
        else:
            low = middle
    return 10**high
