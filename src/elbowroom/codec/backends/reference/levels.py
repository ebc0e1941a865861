"""Values of the dense codec to symbols, extra bits and activities, and back."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec.backends.reference.numbers import wrap
from elbowroom.errors import CorruptData

ESCAPE = 0
_ZERO = 128
_ESCAPE_LEVEL = 128
_LAST_PLAIN_LEVEL = 64
_MOST_ACTIVE = 16384

Whole = NDArray[np.int64]


class Tokens(NamedTuple):
    """What a group, or a chunk of them, says about its values."""

    symbols: Whole
    extra_widths: Whole
    extra: Whole
    activity: Whole


def _levels(u: Whole) -> Whole:
    """The level of each u >= 0; 128 and more where no symbol is left for it."""
    octave = np.frexp(u.astype(np.float64))[1].astype(np.int64) - 7
    octave = np.maximum(octave, 0)
    eighth = (u >> (octave + 3)) & 7
    return np.where(u < 64, u + 1, 65 + 8 * octave + eighth)


def _lowest_u(level: Whole) -> Whole:
    """The smallest u of each level from 1 to 127."""
    octave, eighth = np.divmod(np.maximum(level - 65, 0), 8)
    return np.where(level <= _LAST_PLAIN_LEVEL, level - 1, (8 + eighth) << (octave + 3))


def extra_widths(symbols: Whole, shift: int) -> Whole:
    """How many of the lowest bits of m - 1 each symbol leaves to be told."""
    level = np.abs(symbols - _ZERO)
    octave = np.maximum(level - 65, 0) // 8
    width = np.where(level > _LAST_PLAIN_LEVEL, shift + octave + 3, shift)
    return np.where((level == 0) | (level == _ESCAPE_LEVEL), 0, width)


def _activity(symbols: Whole, u: Whole) -> Whole:
    activity = np.where(symbols == _ZERO, 0, np.minimum(u + 1, _MOST_ACTIVE))
    return np.where(symbols == ESCAPE, _MOST_ACTIVE, activity)


def tokens_of(values: NDArray[np.int32], shift: int) -> Tokens:
    """Symbols of values, with what comes along."""
    m = np.abs(values.astype(np.int64))
    below = np.maximum(m - 1, 0)
    u = below >> shift
    level = np.where(m == 0, 0, _levels(u))
    symbols = np.where(values < 0, _ZERO - level, _ZERO + level)
    symbols = np.where(level >= _ESCAPE_LEVEL, ESCAPE, symbols)
    widths = extra_widths(symbols, shift)
    return Tokens(symbols, widths, below & ((1 << widths) - 1), _activity(symbols, u))


class Reader:
    """Turns symbols and extra bits back into values, taking escapes in order."""

    def __init__(self, escapes: NDArray[np.int32], shift: int) -> None:
        self.escapes, self.shift = escapes, shift
        self.at = 0

    def values_of(self, symbols: Whole, extra: Whole) -> tuple[NDArray[np.int32], Whole]:
        """Values and activities of one group."""
        below = (_lowest_u(np.abs(symbols - _ZERO)) << self.shift) + extra
        m = np.where(symbols == _ZERO, 0, below + 1)
        values = wrap(np.where(symbols < _ZERO, -m, m))
        escaped = symbols == ESCAPE
        taken = self.escapes[self.at : self.at + int(escaped.sum())]
        if len(taken) < escaped.sum():
            raise CorruptData("escapes: used up too early")
        self.at += len(taken)
        values[escaped] = taken
        return values, _activity(symbols, below >> self.shift)

    def finish(self) -> None:
        """Raise CorruptData unless all escapes are used up."""
        if self.at != len(self.escapes):
            raise CorruptData(f"escapes: {len(self.escapes) - self.at} left over")
