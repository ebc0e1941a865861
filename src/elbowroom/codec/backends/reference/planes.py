"""One block of 64 codes to bit planes and back."""

import struct
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

BLOCK_CODES = 64
_PLANE_BYTES = 8


class Shape(IntEnum):
    """Bits 6 and 7 of a block's header."""

    UNSIGNED = 0
    SIGNED = 1
    OFFSET = 2
    RAW = 3


RAW_HEADER = Shape.RAW << 6


def split_header(header: int) -> tuple[Shape, int]:
    """Shape and number of planes."""
    return Shape(header >> 6), header & 63


def payload_bytes(header: int) -> int:
    """Bytes of the payload of a block that is not raw."""
    shape, width = split_header(header)
    return _PLANE_BYTES * width + {Shape.UNSIGNED: 0, Shape.SIGNED: 8, Shape.OFFSET: 4}[shape]


def choose_header(codes: NDArray[np.int32]) -> int:
    """The shape that fits the sign, or offset if that is shorter."""
    low, high = int(codes.min()), int(codes.max())
    if low >= 0:
        header = Shape.UNSIGNED << 6 | high.bit_length()
    else:
        header = Shape.SIGNED << 6 | max(abs(low), abs(high)).bit_length()
    offset = Shape.OFFSET << 6 | (high - low).bit_length()
    return offset if payload_bytes(offset) < payload_bytes(header) else header


def _write_planes(values: NDArray[np.int64], width: int) -> bytes:
    bits = (values >> np.arange(width)[:, None]) & 1
    return np.packbits(bits.astype(np.uint8), axis=1, bitorder="little").tobytes()


def _read_planes(data: bytes, width: int) -> NDArray[np.int64]:
    rows = np.frombuffer(data, dtype=np.uint8).reshape(width, _PLANE_BYTES)
    bits = np.unpackbits(rows, axis=1, bitorder="little").astype(np.int64)
    return (bits << np.arange(width)[:, None]).sum(axis=0, dtype=np.int64)


def pack(header: int, codes: NDArray[np.int32]) -> bytes:
    """The payload of 64 codes under a header that fits them."""
    shape, width = split_header(header)
    values = codes.astype(np.int64)
    if shape == Shape.SIGNED:
        return _write_planes((values < 0).astype(np.int64), 1) + _write_planes(
            np.abs(values), width
        )
    if shape == Shape.OFFSET:
        low = int(values.min())
        return struct.pack("<i", low) + _write_planes(values - low, width)
    return _write_planes(values, width)


def unpack(header: int, payload: bytes) -> NDArray[np.int64]:
    """The 64 codes of a payload, not yet taken modulo 2^32."""
    shape, width = split_header(header)
    if shape == Shape.SIGNED:
        negative = _read_planes(payload[:_PLANE_BYTES], 1) == 1
        values = _read_planes(payload[_PLANE_BYTES:], width)
        return np.where(negative, -values, values)
    if shape == Shape.OFFSET:
        return _read_planes(payload[4:], width) + struct.unpack("<i", payload[:4])[0]
    return _read_planes(payload, width)
