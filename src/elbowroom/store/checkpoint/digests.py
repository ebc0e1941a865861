"""Hash trees: what a run of bytes is, told from its parts.

A tensor's bytes are cut into leaves; a parent is the hash of its two children, and a last child
without a sibling moves up as it is. Equal roots mean equal bytes; where roots differ, descending
where digests differ finds the leaves that do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elbowroom import _native
from elbowroom.errors import BackendUnavailable, InvalidArgument

LEAF_BYTES = 1 << 14

Digests = NDArray[np.uint8]  # one digest a row


def _bytes_of(data: Any) -> NDArray[np.uint8]:
    view = memoryview(data)
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def _xxh3(data: Any) -> bytes:
    view, out = _bytes_of(data), np.empty(16, np.uint8)
    _native.hash_whole(view.ctypes.data, view.size, out.ctypes.data)
    return out.tobytes()


def _blake3(data: Any) -> bytes:
    try:
        from blake3 import blake3
    except ImportError:
        raise BackendUnavailable(
            "hash='blake3' needs the package blake3: pip install blake3"
        ) from None
    return blake3(data).digest()


# xxh3 finds accidents at the speed of memory. Someone who may write into a store can find two
# contents with one digest; where that counts, blake3 is for it.
HASHES: dict[str, tuple[int, Callable[[Any], bytes]]] = {
    "xxh3-128": (16, _xxh3),
    "blake3": (32, _blake3),
}


def check_hash(name: str) -> str:
    """Refuse a hash that there is not."""
    if name not in HASHES:
        raise InvalidArgument(f"hash must be one of {', '.join(HASHES)}, got {name!r}")
    return name


def digest_of(name: str, data: Any) -> bytes:
    """The digest of all of it at once."""
    return HASHES[name][1](data)


def hash_parts(name: str, data: Any, part_bytes: int, threads: int = 1) -> Digests:
    """The digest of every part of so many bytes; the last may be shorter. None of nothing.

    One thread by default: checkpoints are hashed behind a training that needs the others.
    """
    view = _bytes_of(data)
    size, function = HASHES[name]
    if name == "xxh3-128":
        out = np.empty((-(-view.size // part_bytes), size), np.uint8)
        _native.hash_parts(view.ctypes.data, view.size, part_bytes, out.ctypes.data, threads)
        return out
    parts = [function(view[at : at + part_bytes]) for at in range(0, view.size, part_bytes)]
    return np.frombuffer(b"".join(parts), np.uint8).reshape(-1, size)


def _pairs_above(name: str, leaves: Digests) -> Digests:
    """All digests above the leaves, level by level."""
    size = leaves.shape[1]
    if name == "xxh3-128":
        above = np.empty((_native.digests_above(len(leaves)), size), np.uint8)
        _native.hash_pairs(leaves.ctypes.data, len(leaves), above.ctypes.data)
        return above
    levels = [leaves]
    while len(levels[-1]) > 1:
        below = levels[-1]
        pairs = len(below) // 2
        above = hash_parts(name, below[: 2 * pairs].data, 2 * size)
        levels.append(np.concatenate([above, below[2 * pairs :]]))
    return np.concatenate([leaves[:0], *levels[1:]])


@dataclass(frozen=True, kw_only=True)
class HashTree:
    """The digests of all leaves of some bytes, and those above them."""

    hash: str
    nbytes: int
    leaves: Digests
    leaf_bytes: int = LEAF_BYTES

    @classmethod
    def of(cls, data: memoryview, hash_name: str, leaf_bytes: int = LEAF_BYTES) -> "HashTree":
        """The tree of these bytes."""
        leaves = hash_parts(hash_name, data, leaf_bytes)
        return cls(hash=hash_name, nbytes=len(data), leaves=leaves, leaf_bytes=leaf_bytes)

    @cached_property
    def levels(self) -> list[Digests]:
        """From the leaves to the root."""
        leaves = np.ascontiguousarray(self.leaves)
        above = _pairs_above(self.hash, leaves)
        levels, count = [leaves], len(leaves)
        while count > 1:
            count = (count + 1) // 2
            levels.append(above[:count])
            above = above[count:]
        return levels

    @property
    def root(self) -> str:
        """What names these bytes: equal for equal bytes, and for no others."""
        top = self.levels[-1]
        return f"{self.nbytes:x}-{top[0].tobytes().hex() if len(top) else ''}"

    def changed(self, other: "HashTree") -> NDArray[np.int64]:
        """Numbers of the leaves that differ from another tree's, found from the root down."""
        if len(self.leaves) != len(other.leaves) or self.hash != other.hash:
            return np.arange(len(self.leaves))
        if self.leaves.tobytes() == other.leaves.tobytes():
            return np.empty(0, np.int64)
        suspects = np.zeros(min(len(self.leaves), 1), np.int64)
        for mine, theirs in zip(reversed(self.levels), reversed(other.levels), strict=True):
            if mine is not self.levels[-1]:
                suspects = np.concatenate([2 * suspects, 2 * suspects + 1])
                suspects = np.sort(suspects[suspects < len(mine)])
            differ = (mine[suspects] != theirs[suspects]).any(1)
            suspects = suspects[differ]
        return suspects
