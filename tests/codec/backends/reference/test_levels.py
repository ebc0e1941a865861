"""Symbols, extra bits and activities, by hand and back."""

import numpy as np
import pytest

from elbowroom.codec.backends.reference import levels
from elbowroom.errors import CorruptData


@pytest.mark.parametrize(
    ("shift", "expected"),
    [
        # value: symbol, number of extra bits, extra bits, activity
        (0, {0: (128, 0, 0, 0), 1: (129, 0, 0, 1), -1: (127, 0, 0, 1), 64: (192, 0, 0, 64)}),
        # u = 64 to 71 share a level and have three bits; 128 to 143 have four.
        (0, {65: (193, 3, 0, 65), 72: (193, 3, 7, 72), 73: (194, 3, 0, 73), -65: (63, 3, 0, 65)}),
        (0, {129: (201, 4, 0, 129), 144: (201, 4, 15, 144)}),
        # The last level: octave 7, eighth 6, from 14 x 2^10 to 15 x 2^10 - 1.
        (0, {14337: (255, 10, 0, 14337), -15360: (1, 10, 1023, 15360), 15361: (0, 0, 0, 16384)}),
        (0, {-(2**31): (0, 0, 0, 16384), 2**31 - 1: (0, 0, 0, 16384)}),
        # 20 - 1 = 0b10011, and 8 - 1 = 0b111.
        (3, {0: (128, 0, 0, 0), 20: (131, 3, 3, 3), -1: (127, 3, 0, 1), 8: (129, 3, 7, 1)}),
        (3, {513: (193, 6, 0, 65), 8 * 64 + 8 * 7 + 8: (193, 6, 63, 72)}),
        # 2^31 - 1 = 511 x 2^22 + 2^22 - 1: octave 2, eighth 7, 5 + 22 bits.
        (22, {1: (129, 22, 0, 1), -(2**31): (128 - 88, 27, 2**27 - 1, 512)}),
    ],
)
def test_known_tokens(shift: int, expected: dict[int, tuple[int, int, int, int]]) -> None:
    tokens = levels.tokens_of(np.array(list(expected), np.int32), shift)
    assert list(zip(*(part.tolist() for part in tokens), strict=True)) == list(expected.values())


@pytest.mark.parametrize("shift", [0, 1, 7, 16, 22])
def test_round_trip(shift: int) -> None:
    rng = np.random.default_rng(shift)
    bits = rng.integers(0, 32, (50, 64))
    values = (rng.integers(-(2**31), 2**31, (50, 64)) >> bits).astype(np.int32)
    values[0, :3] = [-(2**31), 2**31 - 1, 0]
    symbols, widths, extra, activity = levels.tokens_of(values, shift)
    assert np.all((0 <= extra) & (extra < 1 << widths))
    assert widths.max() <= 32
    reader = levels.Reader(values[symbols == levels.ESCAPE], shift)
    for t in range(50):
        assert levels.extra_widths(symbols[t], shift).tolist() == widths[t].tolist()
        back, active = reader.values_of(symbols[t], extra[t])
        assert back.tolist() == values[t].tolist()
        assert active.tolist() == activity[t].tolist()
    reader.finish()


def test_levels_ascend_with_values() -> None:
    symbols = levels.tokens_of(np.arange(15361, dtype=np.int32), 0).symbols
    assert np.all(np.isin(np.diff(symbols), [0, 1]))
    assert np.unique(symbols).tolist() == list(range(128, 256))


def test_what_is_left_or_missing_is_found() -> None:
    reader = levels.Reader(np.array([7], np.int32), 0)
    with pytest.raises(CorruptData, match=r"^escapes: 1 left"):
        reader.finish()
    escape, none = np.array([levels.ESCAPE]), np.array([0])
    assert reader.values_of(escape, none)[0].tolist() == [7]
    with pytest.raises(CorruptData, match=r"^escapes: used up"):
        reader.values_of(escape, none)
