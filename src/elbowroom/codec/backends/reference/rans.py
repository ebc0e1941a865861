"""Range coders side by side, one a lane (rANS with 16-bit words)."""

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec.backends.reference.tables import Tables
from elbowroom.errors import CorruptData

LOW_STATE = 65536

Whole = NDArray[np.int64]


def _cumulative(tables: Tables) -> Tables:
    """Sum of the frequencies of lower symbols."""
    return np.cumsum(tables, axis=1) - tables


def _split_widths(widths: Whole) -> tuple[Whole, Whole]:
    """Extra bits go in two passes: the lowest 16, and those beyond."""
    return np.minimum(widths, 16), np.maximum(widths - 16, 0)


class Encoder:
    """Puts groups on states and words, backwards in time."""

    def __init__(self, tables: Tables, precision: int, lane_count: int) -> None:
        self.tables, self.precision = tables, precision
        self.cumulative = _cumulative(tables)
        self.x = np.full(lane_count, LOW_STATE, dtype=np.int64)
        self.passes: list[Whole] = []

    def _give(self, lanes: NDArray[np.bool_]) -> None:
        """Write the low word of some states."""
        self.passes.append(self.x[lanes] & 0xFFFF)
        self.x = np.where(lanes, self.x >> 16, self.x)

    def _put_bits(self, widths: Whole, bits: Whole) -> None:
        self._give(self.x >> (32 - widths) != 0)
        self.x = self.x << widths | bits

    def put(self, context: Whole, symbol: Whole, widths: Whole, extra: Whole) -> None:
        """Code the group before the last one that was put."""
        low, high = _split_widths(widths)
        self._put_bits(high, extra >> 16)
        self._put_bits(low, extra & ((1 << low) - 1))
        f, c = self.tables[context, symbol], self.cumulative[context, symbol]
        self._give(self.x >> (32 - self.precision) >= f)
        self.x = (self.x // f << self.precision) + self.x % f + c

    def finish(self) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
        """States and words, the latter in the order in which a reader takes them."""
        words = np.concatenate([*self.passes[::-1], np.zeros(0, dtype=np.int64)])
        return self.x.astype(np.uint32), words.astype(np.uint16)


class Decoder:
    """Takes groups off states and words, forwards in time."""

    def __init__(
        self,
        tables: Tables,
        precision: int,
        states: NDArray[np.uint32],
        words: NDArray[np.uint16],
    ) -> None:
        self.tables, self.precision, self.words = tables, precision, words.astype(np.int64)
        self.cumulative = _cumulative(tables)
        self.occurs: NDArray[np.bool_] = np.any(tables > 0, axis=1)
        self.x = states.astype(np.int64)
        self.at = 0
        if np.any(self.x < LOW_STATE):
            raise CorruptData(f"states: below {LOW_STATE}")
        slots = np.arange(2**precision)
        self.symbol_of_slot = np.array(
            [np.searchsorted(np.cumsum(row), slots, side="right") for row in tables]
        )

    def _refill(self) -> None:
        """Give the next words to the states that need one."""
        need = self.x < LOW_STATE
        taken = self.words[self.at : self.at + int(need.sum())]
        if len(taken) < need.sum():
            raise CorruptData("words: used up too early")
        self.at += len(taken)
        self.x[need] = self.x[need] << 16 | taken

    def take_symbols(self, context: Whole) -> Whole:
        """The next symbol of every lane, each from its context's table."""
        if not self.occurs[context].all():
            raise CorruptData("tables: a context without a table occurs")
        slot = self.x & (2**self.precision - 1)
        symbol = self.symbol_of_slot[context, slot]
        f, c = self.tables[context, symbol], self.cumulative[context, symbol]
        self.x = f * (self.x >> self.precision) + slot - c
        self._refill()
        return symbol

    def _take_bits(self, widths: Whole) -> Whole:
        bits = self.x & ((1 << widths) - 1)
        self.x = self.x >> widths
        self._refill()
        return bits

    def take_extra(self, widths: Whole) -> Whole:
        """The extra bits of the symbols that were taken last."""
        low, high = _split_widths(widths)
        lowest = self._take_bits(low)
        return self._take_bits(high) << 16 | lowest

    def finish(self) -> None:
        """Raise CorruptData unless everything is used up and back where the encoder began."""
        if self.at != len(self.words):
            raise CorruptData(f"words: {len(self.words) - self.at} of {len(self.words)} left over")
        if np.any(self.x != LOW_STATE):
            raise CorruptData(f"states: expected {LOW_STATE} at the end")
