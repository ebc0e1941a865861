"""The 32-bit checksum of docs/format.md: sixteen Fletcher lanes, mixed at the end."""

import numpy as np

_LANES = 16
_MASK = 2**64 - 1


def checksum(data: bytes) -> int:
    """The checksum of some bytes."""
    filled = data + bytes(-len(data) % (4 * _LANES))
    words = np.frombuffer(filled, dtype="<u4").reshape(-1, _LANES)
    a = np.zeros(_LANES, dtype=np.uint32)
    b = np.zeros(_LANES, dtype=np.uint32)
    for row in words:
        a += row
        b = ((b << np.uint32(7)) | (b >> np.uint32(25))) + a
    h = 0x9E3779B97F4A7C15 ^ len(data)
    for first, second in zip(a.tolist(), b.tolist(), strict=True):
        h = (h ^ (second << 32 | first)) * 0xD6E8FEB86659FD93 & _MASK
        h ^= h >> 32
    return h & 0xFFFFFFFF
