"""The range coders: one step by hand, and symbols that come back."""

import numpy as np
import pytest

from elbowroom.codec.backends.reference.rans import LANES, Decoder, encode_groups
from elbowroom.codec.backends.reference.tables import build_tables
from elbowroom.errors import CorruptData


def two_symbols(low: int) -> np.ndarray:
    """A table of symbol 10 with frequency `low`, and symbol 20 with the rest of 2048."""
    table = np.zeros((1, 256), np.int64)
    table[0, [10, 20]] = [low, 2048 - low]
    return table


def test_one_step_by_hand() -> None:
    symbols = np.full((1, LANES), 10)
    symbols[0, 1] = 20
    states, words = encode_groups(np.zeros_like(symbols), symbols, two_symbols(1000), 11)
    # 65536 = 65 x 1000 + 536 and 62 x 1048 + 560; the frequencies below 20 sum to 1000.
    assert states[:3].tolist() == [65 * 2048 + 536, 62 * 2048 + 560 + 1000, 65 * 2048 + 536]
    assert words.tolist() == []


def test_words_by_hand() -> None:
    # Frequency 1: 65536 becomes 2^27 + c; 2^27 >> 21 is 64 and not below 1, so the low word leaves,
    # and 2^11 becomes 2^22 + c.
    symbols = np.full((2, LANES), 10)
    symbols[:, 3] = 20
    states, words = encode_groups(np.zeros_like(symbols), symbols, two_symbols(2047), 11)
    assert states[3] == 2048 * 2048 + 2047
    assert words.tolist() == [2047]


def test_words_lie_in_order_of_time_then_lane() -> None:
    # Rare symbols everywhere at times 1 and 2: every lane gives its word at time 1, then at 0.
    rng = np.random.default_rng(1)
    symbols = rng.choice([10, 20], (3, LANES))
    contexts = np.zeros_like(symbols)
    states, words = encode_groups(contexts, symbols, two_symbols(1), 11)
    expected = []
    x = [65536] * LANES
    for t in (2, 1, 0):
        for lane in range(LANES - 1, -1, -1):
            f, c = (1, 0) if symbols[t, lane] == 10 else (2047, 1)
            if x[lane] >> 21 >= f:
                expected.insert(0, x[lane] & 0xFFFF)
                x[lane] >>= 16
            x[lane] = (x[lane] // f << 11) + x[lane] % f + c
    assert len(expected) > LANES // 2
    assert words.tolist() == expected
    assert states.tolist() == x


@pytest.mark.parametrize("n", [1, 2, 100, 1000])
@pytest.mark.parametrize("spread", [0.1, 3, 60])
def test_round_trip(n: int, spread: float) -> None:
    rng = np.random.default_rng(n)
    symbols = np.clip(rng.normal(128, spread, (n, LANES)).astype(np.int64), 0, 255)
    contexts = rng.integers(0, 3, (n, LANES))
    precision, tables = build_tables(n * LANES, contexts, symbols, 3)
    states, words = encode_groups(contexts, symbols, tables, precision)
    decoder = Decoder(tables, precision, states, words)
    for context, symbol in zip(contexts, symbols, strict=True):
        assert decoder.take(context).tolist() == symbol.tolist()
    decoder.finish()


def test_what_is_left_or_missing_is_found() -> None:
    symbols = np.full((3, LANES), 20)
    contexts = np.zeros_like(symbols)
    tables = two_symbols(2047)
    states, words = encode_groups(contexts, symbols, tables, 11)

    def run(states: np.ndarray, words: np.ndarray, context: int = 0) -> None:
        decoder = Decoder(tables, 11, states, words)
        for row in contexts:
            decoder.take(row + context)
        decoder.finish()

    run(states, words)
    with pytest.raises(CorruptData, match=r"^words: used up"):
        run(states, words[:-1])
    with pytest.raises(CorruptData, match=r"^words: 1 of"):
        run(states, np.append(words, np.uint16(0)))
    with pytest.raises(CorruptData, match=r"^states: expected"):
        run(states, np.append(words[:-1], words[-1] ^ np.uint16(1 << 11)))
    with pytest.raises(CorruptData, match=r"^states: below"):
        run(states & 0xFFFF, words)
    tables = np.concatenate([tables, np.zeros_like(tables)])
    with pytest.raises(CorruptData, match=r"^tables: "):
        run(states, words, 1)
