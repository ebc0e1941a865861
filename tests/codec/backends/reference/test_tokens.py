"""Symbols, extra bits and escapes, by hand and back."""

import numpy as np
import pytest

from elbowroom.codec.backends.reference import tokens
from elbowroom.codec.backends.reference.rans import LANES
from elbowroom.errors import CorruptData


@pytest.mark.parametrize(
    ("shift", "expected"),
    [
        (0, {0: 128, 1: 129, -1: 127, 127: 255, -127: 1, 128: 0, -128: 0, -(2**31): 0}),
        (3, {0: 128, 1: 129, 8: 129, 9: 130, -8: 127, 1016: 255, 1017: 0, -1016: 1, -1017: 0}),
        (31, {0: 128, 1: 129, 2**31 - 1: 129, -(2**31): 127}),
    ],
)
def test_known_symbols(shift: int, expected: dict[int, int]) -> None:
    values = np.array(list(expected), np.int32)
    assert tokens.symbols_of(values, shift).tolist() == list(expected.values())


def test_known_extra_bits() -> None:
    # m - 1 is 19, 0, 7: low three bits 011, 000, 111; zero and the escape have none.
    values = np.array([[20, 0, -1, 5000, 8]], np.int32)
    symbols = tokens.symbols_of(values, 3)
    assert symbols.tolist() == [[131, 128, 127, 0, 129]]
    data = tokens.pack_extra(values, symbols, 3)
    assert data == bytes([0b11_000_011, 0b1])
    assert tokens.unpack_extra(data, 3, 3).tolist() == [3, 0, 7]
    assert tokens.escapes_of(values, symbols).tolist() == [5000]
    with pytest.raises(CorruptData, match=r"^extra bits: "):
        tokens.unpack_extra(bytes([0b11_000_011, 0b11]), 3, 3)


@pytest.mark.parametrize("shift", [0, 1, 7, 24, 25, 31])
def test_round_trip(shift: int) -> None:
    rng = np.random.default_rng(shift)
    bits = rng.integers(0, 32, (50, LANES))
    values = (rng.integers(-(2**31), 2**31, (50, LANES)) >> bits).astype(np.int32)
    values[0, :3] = [-(2**31), 2**31 - 1, 0]
    symbols = tokens.symbols_of(values, shift)
    count = int(tokens.has_extra(symbols, shift).sum())
    extra = tokens.unpack_extra(tokens.pack_extra(values, symbols, shift), count, shift)
    reader = tokens.Reader(extra, tokens.escapes_of(values, symbols), shift)
    for row, symbol in zip(values, symbols, strict=True):
        assert reader.values_of(symbol).tolist() == row.tolist()
    reader.finish()


def test_what_is_left_or_missing_is_found() -> None:
    none = np.zeros(0, np.int64)
    reader = tokens.Reader(none, np.array([7], np.int32), 0)
    with pytest.raises(CorruptData, match=r"^escapes: 1 left"):
        reader.finish()
    assert reader.values_of(np.array([0])).tolist() == [7]
    with pytest.raises(CorruptData, match=r"^escapes: used up"):
        reader.values_of(np.array([0]))
    reader = tokens.Reader(none, none.astype(np.int32), 2)
    with pytest.raises(CorruptData, match=r"^extra bits: used up"):
        reader.values_of(np.array([129]))
    with pytest.raises(CorruptData, match=r"^extra bits: 1 fields left"):
        tokens.Reader(np.array([1]), none.astype(np.int32), 2).finish()
