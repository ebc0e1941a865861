"""Bit planes of one block: headers and payloads by hand, and the inverse."""

import numpy as np
import pytest

from elbowroom.codec.backends.reference import planes


def block_of(*codes: int) -> np.ndarray:
    """A block of these codes, filled with zeros."""
    return np.array([*codes, *[0] * (64 - len(codes))], np.int32)


@pytest.mark.parametrize(
    ("block", "header", "payload"),
    [
        (block_of(), 0x00, ""),
        (block_of(1), 0x01, "0100000000000000"),
        (block_of(0, 2, 3), 0x02, "0400000000000000 0600000000000000"),
        (block_of(*[0] * 63, 1), 0x01, "0000000000000080"),
        # One value: an offset needs no planes.
        (block_of(*[5] * 64), 0x80, "05000000"),
        (block_of(*[-7] * 64), 0x80, "f9ffffff"),
        (block_of(*[100, 101] * 32), 0x81, "64000000 aaaaaaaaaaaaaaaa"),
        # -1 and 0: an offset of 1 plane is shorter than signs and 1 plane.
        (block_of(-1), 0x81, "ffffffff feffffffffffffff"),
        (block_of(-1, 1), 0x41, "0100000000000000 0300000000000000"),
        (block_of(-3, 3), 0x42, "0100000000000000 0300000000000000 0300000000000000"),
    ],
)
def test_known_blocks(block: np.ndarray, header: int, payload: str) -> None:
    assert planes.choose_header(block) == header
    assert planes.pack(header, block) == bytes.fromhex(payload)
    assert planes.payload_bytes(header) == len(bytes.fromhex(payload))
    assert planes.unpack(header, bytes.fromhex(payload)).tolist() == block.tolist()


@pytest.mark.parametrize(
    ("low", "high", "shape", "width"),
    [
        (0, 2**31 - 1, 0, 31),
        (-(2**31), 2**31 - 1, 2, 32),
        (-(2**31), 0, 2, 32),
        (-(2**31), -(2**31), 2, 0),
        (-(2**30), 2**30, 1, 31),
    ],
)
def test_extremes(low: int, high: int, shape: int, width: int) -> None:
    block = np.full(64, low, np.int32)
    block[13] = high
    header = planes.choose_header(block)
    assert planes.split_header(header) == (shape, width)
    assert planes.unpack(header, planes.pack(header, block)).tolist() == block.tolist()


@pytest.mark.parametrize("bits", range(1, 33))
def test_round_trip(bits: int) -> None:
    rng = np.random.default_rng(bits)
    for _ in range(10):
        block = (rng.integers(-(2**31), 2**31, 64) >> (32 - bits)).astype(np.int32)
        header = planes.choose_header(block)
        assert planes.unpack(header, planes.pack(header, block)).tolist() == block.tolist()
