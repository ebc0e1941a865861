"""Frequency tables: sums by hand, bits by hand, and bits that are no table."""

import numpy as np
import pytest

from elbowroom.codec.backends.reference.tables import (
    build_tables,
    choose_precision,
    frequencies,
    pack_tables,
    unpack_tables,
)
from elbowroom.errors import CorruptData


def counts_of(*counts: int) -> np.ndarray:
    """Counts of the first symbols; the others do not occur."""
    return np.array([*counts, *[0] * (256 - len(counts))], np.int64)


@pytest.mark.parametrize(
    ("counts", "precision", "expected"),
    [
        ([5], 11, [2048]),
        ([1, 2], 11, [683, 1365]),
        ([1, 1, 1], 11, [682, 683, 683]),
        ([1] * 6, 11, [343, 341, 341, 341, 341, 341]),
        ([0, 1, 10**6], 12, [0, 1, 4095]),
        ([1, 1, 1, 100], 2, [1, 1, 1, 1]),
        ([10, 10, 1], 2, [1, 2, 1]),
    ],
)
def test_known_frequencies(counts: list[int], precision: int, expected: list[int]) -> None:
    assert frequencies(counts_of(*counts), precision)[: len(expected)].tolist() == expected


def test_frequencies_sum_to_a_power_of_two() -> None:
    rng = np.random.default_rng(0)
    for precision in (11, 12):
        for _ in range(50):
            counts = (rng.exponential(size=256) ** 8).astype(np.int64)
            counts[rng.integers(256)] += 1
            f = frequencies(counts, precision)
            assert f.sum() == 2**precision
            assert np.array_equal(f > 0, counts > 0)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # 64 symbols in two contexts, and 65; a third context does not occur.
        ([1] * 40, [1] * 24, 11),
        ([1] * 40, [1] * 25, 12),
        # One of 64 is not less than a 64th, one of 65 is; a single symbol is no reason.
        ([63, 1], [5], 11),
        ([64, 1], [5], 12),
        ([1000], [1000], 11),
        # Skewed contexts decide only where they have half of all counts.
        ([64, 1], [32, 33], 12),
        ([64, 1], [33, 33], 11),
    ],
)
def test_precision(first: list[int], second: list[int], expected: int) -> None:
    counts = np.array([counts_of(*first), counts_of(*second), counts_of()])
    assert choose_precision(32767, counts) == 11
    assert choose_precision(32768, counts) == expected


def test_known_bits() -> None:
    # Context 1: symbols 3 to 5 of frequencies 1, 0, 2047. 3, 5, then 0001, 0000 and 1011 with ten
    # ones: 0xfff minus the leading one has ten bits below it.
    table = np.zeros((2, 256), np.int64)
    table[1, [3, 5]] = [1, 2047]
    bits = 3 | 5 << 8 | 1 << 16 | 0 << 20 | 11 << 24 | 1023 << 28
    expected = (2).to_bytes(8, "little") + bits.to_bytes(8, "little")
    assert pack_tables(table) == expected
    assert unpack_tables(expected, 2, 11).tolist() == table.tolist()


@pytest.mark.parametrize("context_count", [1, 24, 48])
@pytest.mark.parametrize("n", [1000, 40000])
def test_round_trip(context_count: int, n: int) -> None:
    rng = np.random.default_rng(n)
    symbols = np.clip(rng.normal(128, 30, n).astype(np.int64), 0, 255)
    contexts = rng.integers(0, context_count, n) & ~1
    precision, tables = build_tables(n, contexts, symbols, context_count)
    assert precision == (11 if n == 1000 else 12)
    data = pack_tables(tables)
    assert len(data) % 8 == 0
    assert np.array_equal(unpack_tables(data, context_count, precision), tables)


def bits_to_bytes(contexts: int, bits: int, size: int = 8) -> bytes:
    return contexts.to_bytes(8, "little") + bits.to_bytes(size, "little")


ONE_SYMBOL = 7 | 7 << 8 | 12 << 16 | 0 << 20


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(7),
        bits_to_bytes(1, ONE_SYMBOL, 7),
        bits_to_bytes(1, ONE_SYMBOL, 16),
        bits_to_bytes(0, 0, 8),
        bits_to_bytes(2, ONE_SYMBOL),
        bits_to_bytes(1 << 63, ONE_SYMBOL),
        bits_to_bytes(1, ONE_SYMBOL | 1 << 63),
        bits_to_bytes(1, ONE_SYMBOL | 1 << 20),
        bits_to_bytes(1, 7 | 6 << 8 | 12 << 16),
        bits_to_bytes(1, 6 | 7 << 8 | 0 << 16 | 12 << 20),
        bits_to_bytes(1, 7 | 7 << 8 | 11 << 16),
        bits_to_bytes(1, 7 | 7 << 8 | 13 << 16),
        bits_to_bytes(1, 0 | 255 << 8),
        bits_to_bytes(1, 0, 0),
    ],
)
def test_bytes_that_are_no_tables(data: bytes) -> None:
    assert unpack_tables(bits_to_bytes(1, ONE_SYMBOL), 1, 11)[0, 7] == 2048
    with pytest.raises(CorruptData, match=r"^tables: "):
        unpack_tables(data, 1, 11)
