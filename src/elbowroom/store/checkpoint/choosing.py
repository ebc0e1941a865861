"""How changed bytes of a tensor are stored: by samples, the smallest that is worth its time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elbowroom.store.checkpoint.coding import encode_frame, frames_of, possible_codings
from elbowroom.store.checkpoint.contents import Held
from elbowroom.store.checkpoint.layout import DTYPES
from elbowroom.store.checkpoint.snapshot import Piece
from elbowroom.store.checkpoint.thrift import Allows

# Differences upon differences: all of them stay as long as the last, and all are read with it.
# After so many, or once they weigh this much more than what they describe, a content is written
# whole again.
MOST_DEPTH, _MOST_CHAIN = 8, 1.5
_SAMPLES, _SAMPLE_BYTES = 8, 1 << 15
# Coding takes time, now and at every reading. Where much of a state has changed a little, disks are
# what fills, and a tenth is worth it; a whole state is written fastest as it is.
_WORTH_AGAIN, _WORTH_FIRST = 0.9, 0.7
_LEAST_BYTES = 1 << 12
_MOST_AHEAD_BYTES = 64 << 20

_Bytes = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Coded:
    """Bytes that were made smaller, and what they build on."""

    coding: str
    item_bytes: int
    base: Held | None
    frames: Iterable[bytes]


def can_build_on(base: Held | None, nbytes: int) -> bool:
    """Whether a difference to that content would be kept."""
    return (
        base is not None
        and base.nbytes == nbytes
        and base.depth < MOST_DEPTH
        and base.chain_bytes <= _MOST_CHAIN * nbytes
    )


def choose(
    piece: Piece,
    data: _Bytes,
    base: Held | None,
    old: _Bytes | None,
    new_bytes: int,
    allows: Allows = lambda base, share: True,
) -> tuple[Coded | None, float]:
    """Code a content of which so many bytes are not in the store; None if it is better as it is.

    Return also how many bytes it would take at least, were differences always allowed. `old` are
    the bytes of `base`, if it is to build on that.
    """
    if new_bytes < _LEAST_BYTES:
        return None, new_bytes
    item_bytes = _width(piece)
    coding, share = estimate(data, old, item_bytes)
    least_bytes = min(share * len(data), new_bytes)
    if base is not None and coding != "zstd" and not allows(base, share):
        base = old = None
        coding, share = estimate(data, None, item_bytes)
    if share * len(data) > (_WORTH_FIRST if base is None else _WORTH_AGAIN) * new_bytes:
        return None, least_bytes
    frames = _encode(coding, item_bytes, data, old)
    coded = Coded(
        coding=coding,
        item_bytes=item_bytes,
        base=None if coding == "zstd" else base,
        # What is large is coded when it is written, lest two copies of it be held.
        frames=list(frames) if len(data) <= _MOST_AHEAD_BYTES else frames,
    )
    return coded, least_bytes


def _encode(coding: str, item_bytes: int, data: _Bytes, old: _Bytes | None) -> Iterator[bytes]:
    for frame in frames_of(len(data)):
        before = None if old is None else old[frame]
        yield encode_frame(coding, item_bytes, data[frame], before)


def estimate(data: _Bytes, old: _Bytes | None, item_bytes: int) -> tuple[str, float]:
    """The best coding, and which share of the bytes it would leave, going by samples."""
    samples = min(max(len(data) >> 20, 2), _SAMPLES)
    starts = np.linspace(0, max(len(data) - _SAMPLE_BYTES, 0), samples).astype(np.int64)
    starts = np.unique(starts // _SAMPLE_BYTES * _SAMPLE_BYTES)
    spans = [slice(int(at), min(int(at) + _SAMPLE_BYTES, len(data))) for at in starts]
    total = sum(span.stop - span.start for span in spans)
    best = ("zstd", 1.0)
    for coding in possible_codings(item_bytes, builds_on=old is not None):
        coded = sum(
            len(encode_frame(coding, item_bytes, data[s], None if old is None else old[s]))
            for s in spans
        )
        # What builds on nothing leaves nothing behind: a difference has to be a tenth smaller.
        if coded / total < best[1] * (1.0 if coding == "zstd" or best[0] != "zstd" else 0.9):
            best = (coding, coded / total)
    return best


def _width(piece: Piece) -> int:
    dtype = DTYPES[piece.layout.dtype]
    return dtype.itemsize // 2 if dtype.is_complex else min(dtype.itemsize, 8)
