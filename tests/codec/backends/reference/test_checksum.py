"""The checksum: the page's words taken literally, one word at a time."""

import numpy as np
import pytest

from elbowroom.codec.backends.reference.checksum import checksum


def literal(data: bytes) -> int:
    filled = data + bytes(-len(data) % 64)
    a, b = [0] * 16, [0] * 16
    for i in range(0, len(filled), 4):
        lane = i // 4 % 16
        a[lane] = (a[lane] + int.from_bytes(filled[i : i + 4], "little")) % 2**32
        turned = (b[lane] << 7 | b[lane] >> 25) % 2**32
        b[lane] = (turned + a[lane]) % 2**32
    h = 0x9E3779B97F4A7C15 ^ len(data)
    for lane in range(16):
        h = (h ^ (b[lane] << 32 | a[lane])) * 0xD6E8FEB86659FD93 % 2**64
        h ^= h >> 32
    return h % 2**32


@pytest.mark.parametrize("size", [0, 1, 3, 4, 63, 64, 65, 127, 128, 1000, 4099])
def test_known_words(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()
    assert checksum(data) == literal(data)


def test_sums_wrap() -> None:
    data = b"\xff" * 64 * 300
    assert checksum(data) == literal(data)


def test_every_bit_the_length_and_the_order_count() -> None:
    data = bytes(range(200))
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert checksum(bytes(changed)) != checksum(data)
    assert checksum(bytes(3)) != checksum(bytes(4))
    assert checksum(data[64:128] + data[:64]) != checksum(data[:128])


def test_changes_that_cancel_in_the_sum_count() -> None:
    data = bytes(range(256)) * 4
    for lane in range(16):
        swapped = bytearray(data)
        one, other = 4 * lane, 4 * lane + 64
        swapped[one : one + 4], swapped[other : other + 4] = (
            swapped[other : other + 4],
            swapped[one : one + 4],
        )
        assert checksum(bytes(swapped)) != checksum(data)
        for rows in range(1, 16):
            flipped = bytearray(data)
            flipped[4 * lane + 3] ^= 0x80
            flipped[4 * lane + 3 + 64 * rows] ^= 0x80
            assert checksum(bytes(flipped)) != checksum(data)
