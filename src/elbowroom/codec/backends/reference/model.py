"""What the dense codec expects: lanes, neighbours, prediction and the context of a symbol.

Encoder and decoder walk through time with the same object: both know all earlier codes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec.recipe import Model, Recipe

_ONE = np.float32(1.0)
_EIGHTH = np.float32(0.125)
_CONTEXTS = 48
_CODE_BUCKETS = 24

Codes = NDArray[np.int32]


def context_count(recipe: Recipe) -> int:
    """Contexts that the recipe's model tells apart."""
    return 1 if recipe.method == Model.FLAT else _CONTEXTS


def bucket(z: NDArray[Any], last: int) -> NDArray[np.int64]:
    """Two buckets an octave of z, counted from 0 for z = 1 and at most `last`."""
    pattern = z.astype(np.float32, copy=False).view(np.uint32).astype(np.int64)
    return np.minimum((pattern >> 22) - 254, last)


def grow(z: NDArray[Any], factor: np.float32) -> NDArray[Any]:
    """The distance of z from 1 times a factor, and 1 again."""
    return z * factor - (factor - _ONE)


class Lanes:
    """How a chunk of n codes is cut into `count` lanes, and which codes are neighbours."""

    def __init__(self, recipe: Recipe, n: int, count: int) -> None:
        self.count = count
        self.columns = 0 if recipe.has_word_planes else recipe.columns
        self.rows = recipe.rows
        units = (self.columns * self.rows, self.columns)
        fitting = (u for u in units if u >= 1 and count * self._length(n, u) <= n + n // 8)
        self.unit = next(fitting, 1)
        self.length = self._length(n, self.unit)
        self.has_rows = self.columns != 0 and self.unit != 1
        self.has_planes = self.unit == self.columns * self.rows
        self.zeros = np.zeros(count, dtype=np.int32)

    def _length(self, n: int, unit: int) -> int:
        """The smallest multiple of unit that, once in every lane, holds n codes."""
        return -(-n // (self.count * unit)) * unit

    def cut(self, codes: Codes) -> Codes:
        """Codes with one row a time step and one column a lane."""
        filled = np.zeros(self.count * self.length, dtype=np.int32)
        filled[: len(codes)] = codes
        return np.ascontiguousarray(filled.reshape(self.count, self.length).T)

    def column(self, t: int) -> int:
        """Column of the codes at time t."""
        return t % self.columns if self.has_rows else 0

    def neighbours(self, codes: Codes, t: int) -> tuple[Codes, Codes, Codes, Codes]:
        """Left, above, above left and above right of the codes at time t."""
        left = codes[t - 1] if t > 0 else self.zeros
        if not self.has_rows:
            return left, self.zeros, self.zeros, self.zeros
        columns, column = self.columns, self.column(t)
        if t < columns or (self.has_planes and t // columns % self.rows == 0):
            if column == 0:
                left = self.zeros
            return left, left, left, left
        above = above_left = above_right = codes[t - columns]
        if column == 0:
            left = above
        else:
            above_left = codes[t - columns - 1]
        if column != columns - 1:
            above_right = codes[t - columns + 1]
        return left, above, above_left, above_right


class Walk:
    """A walk through time over a chunk's codes."""

    def __init__(self, recipe: Recipe, lanes: Lanes) -> None:
        self.model = Model(recipe.method)
        self.lanes = lanes
        self.shift = recipe.shift
        self.gain = np.float32(2.0**recipe.gain)
        # The order of the sum is part of the format.
        left, above, above_left, above_right = (np.float32(w / 64) for w in recipe.weights)
        self.weights = left, above, above_left, above_right
        self.along = np.ones(lanes.count, dtype=np.float32)
        columns = lanes.columns if lanes.has_rows else 1
        self.across = np.ones((columns, lanes.count), dtype=np.float32)

    def predict(self, codes: Codes, t: int) -> NDArray[Any]:
        """What the neighbours say about the codes at time t."""
        if not np.any(self.weights):
            return np.zeros(self.lanes.count, dtype=np.float32)
        w_left, w_above, w_above_left, w_above_right = self.weights
        left, above, above_left, above_right = (
            c.astype(np.float32) for c in self.lanes.neighbours(codes, t)
        )
        upper = (w_above * above + w_above_left * above_left) + w_above_right * above_right
        return upper + w_left * left

    def context(self, p: NDArray[Any], t: int) -> NDArray[np.int64]:
        """The table of every lane's symbol at time t, from prediction and earlier activity."""
        h, v = self.along, self.across[self.lanes.column(t)]
        if self.model == Model.CODE:
            b = bucket(np.abs(p * np.float32(2.0 ** (2 - self.shift))) + _ONE, _CODE_BUCKETS - 1)
            return np.where(np.signbit(p), _CODE_BUCKETS + b, b)
        if self.model == Model.FLAT:
            return np.zeros(self.lanes.count, dtype=np.int64)
        if self.model == Model.ALONG:
            return bucket(grow(h, np.float32(8.0)), _CONTEXTS - 1)
        if self.model == Model.ACROSS:
            return bucket(grow(v, np.float32(8.0)), _CONTEXTS - 1)
        if self.model == Model.BOTH:
            return bucket((h + v) * np.float32(4.0) - np.float32(7.0), _CONTEXTS - 1)
        return 8 * bucket(grow(h, self.gain), 5) + bucket(grow(v, self.gain), 7)

    def update(self, activity: NDArray[np.int64], t: int) -> None:
        """Let the activity at time t enter the running means."""
        a = (activity + 1).astype(np.float32)
        column = self.lanes.column(t)
        self.along += (a - self.along) * _EIGHTH
        self.across[column] += (a - self.across[column]) * _EIGHTH
