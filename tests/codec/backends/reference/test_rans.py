"""The range coders: single steps by hand, and groups that come back."""

import numpy as np
import pytest

from elbowroom.codec.backends.reference.rans import Decoder, Encoder
from elbowroom.codec.backends.reference.tables import build_tables
from elbowroom.errors import CorruptData

LANES = 16


def two_symbols(low: int) -> np.ndarray:
    """A table of symbol 10 with frequency `low`, and symbol 20 with the rest of 2048."""
    table = np.zeros((1, 256), np.int64)
    table[0, [10, 20]] = [low, 2048 - low]
    return table


def encode(
    symbols: np.ndarray,
    tables: np.ndarray,
    widths: np.ndarray | None = None,
    extra: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """States and words of symbols in context 0, one row a time step."""
    none = np.zeros_like(symbols)
    encoder = Encoder(tables, 11, symbols.shape[1])
    for t in reversed(range(len(symbols))):
        encoder.put(
            none[t],
            symbols[t],
            (none if widths is None else widths)[t],
            (none if extra is None else extra)[t],
        )
    return encoder.finish()


def test_a_symbol_by_hand() -> None:
    symbols = np.full((1, LANES), 10)
    symbols[0, 1] = 20
    states, words = encode(symbols, two_symbols(1000))
    # 65536 = 65 x 1000 + 536 and 62 x 1048 + 560; the frequencies below 20 sum to 1000.
    assert states[:3].tolist() == [65 * 2048 + 536, 62 * 2048 + 560 + 1000, 65 * 2048 + 536]
    assert words.tolist() == []


def test_words_by_hand() -> None:
    # Frequency 1: 65536 becomes 2^27 + c; 2^27 >> 21 is 64 and not below 1, so the low word leaves,
    # and 2^11 becomes 2^22 + c.
    symbols = np.full((2, LANES), 10)
    symbols[:, 3] = 20
    states, words = encode(symbols, two_symbols(2047))
    assert states[3] == 2048 * 2048 + 2047
    assert words.tolist() == [2047]


def test_extra_bits_by_hand() -> None:
    # Symbol 10 has all frequencies, so that only extra bits move the states.
    table = np.zeros((1, 256), np.int64)
    table[0, 10] = 2048
    symbols = np.full((1, LANES), 10)
    widths, extra = np.zeros((2, 1, LANES), np.int64)
    widths[0, :4] = [3, 15, 16, 20]
    extra[0, :4] = [5, 0x7001, 0xABCD, 0x9_1234]
    states, words = encode(symbols, table, widths, extra)
    # Four bits of lane 3 go first: 65536 x 16 + 9. Then sixteen bits push a low word out: that of
    # 65536 in lane 2, and in lane 3 the 9, which leaves 16.
    expected = [65536 * 8 + 5, 65536 * 2**15 + 0x7001, 0x1_ABCD, 16 << 16 | 0x1234, 65536]
    assert states[:5].tolist() == expected
    assert words.tolist() == [0, 9]
    decoder = Decoder(table, 11, states, words)
    assert decoder.take_symbols(np.zeros(LANES, np.int64)).tolist() == [10] * LANES
    assert decoder.take_extra(widths[0]).tolist() == extra[0].tolist()
    decoder.finish()


def test_words_lie_in_order_of_time_pass_and_lane() -> None:
    rng = np.random.default_rng(1)
    symbols = rng.choice([10, 20], (5, LANES))
    widths = rng.choice([0, 3, 16, 17, 32], (5, LANES))
    extra = rng.integers(0, 2**32, (5, LANES)) & ((1 << widths) - 1)
    states, words = encode(symbols, two_symbols(1), widths, extra)
    expected: list[int] = []
    x = [65536] * LANES

    def put_bits(lane: int, width: int, bits: int) -> None:
        if x[lane] >> (32 - width):
            expected.insert(0, x[lane] & 0xFFFF)
            x[lane] >>= 16
        x[lane] = x[lane] << width | bits

    for t in range(4, -1, -1):
        for lane in range(LANES - 1, -1, -1):
            if widths[t, lane] > 16:
                put_bits(lane, int(widths[t, lane]) - 16, int(extra[t, lane]) >> 16)
        for lane in range(LANES - 1, -1, -1):
            if widths[t, lane] > 0:
                width = min(16, int(widths[t, lane]))
                put_bits(lane, width, int(extra[t, lane]) % 2**width)
        for lane in range(LANES - 1, -1, -1):
            f, c = (1, 0) if symbols[t, lane] == 10 else (2047, 1)
            if x[lane] >> 21 >= f:
                expected.insert(0, x[lane] & 0xFFFF)
                x[lane] >>= 16
            x[lane] = (x[lane] // f << 11) + x[lane] % f + c
    assert len(expected) > 5 * LANES
    assert words.tolist() == expected
    assert states.tolist() == x


@pytest.mark.parametrize("lane_count", [16, 64])
@pytest.mark.parametrize("n", [1, 2, 100, 1000])
@pytest.mark.parametrize("spread", [0.1, 3, 60])
def test_round_trip(lane_count: int, n: int, spread: float) -> None:
    rng = np.random.default_rng(n)
    shape = (n, lane_count)
    symbols = np.clip(rng.normal(128, spread, shape).astype(np.int64), 0, 255)
    contexts = rng.integers(0, 3, shape)
    widths = np.maximum(0, rng.integers(-20, 33, shape))
    extra = rng.integers(0, 2**32, shape) & ((1 << widths) - 1)
    precision, tables = build_tables(n * lane_count, contexts, symbols, 3)
    encoder = Encoder(tables, precision, lane_count)
    for t in reversed(range(n)):
        encoder.put(contexts[t], symbols[t], widths[t], extra[t])
    states, words = encoder.finish()
    decoder = Decoder(tables, precision, states, words)
    for t in range(n):
        assert decoder.take_symbols(contexts[t]).tolist() == symbols[t].tolist()
        assert decoder.take_extra(widths[t]).tolist() == extra[t].tolist()
    decoder.finish()


def test_what_is_left_or_missing_is_found() -> None:
    symbols = np.full((3, LANES), 20)
    tables = two_symbols(2047)
    states, words = encode(symbols, tables)

    def run(states: np.ndarray, words: np.ndarray, context: int = 0) -> None:
        decoder = Decoder(tables, 11, states, words)
        for _ in range(3):
            decoder.take_symbols(np.full(LANES, context))
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
