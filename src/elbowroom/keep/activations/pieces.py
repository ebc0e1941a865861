"""Pieces of logits: some rows or positions at a time, cut where that changes no bit."""

from collections.abc import Iterator

import torch
from torch import Tensor

# Of logits that are worked on at once: few beside all of them, many beside what a call costs.
PIECE_BYTES = 1 << 23

# Positions are cut at whole vectors of every processor: what is left over at the end goes through
# other instructions, which may round in other ways.
VECTOR = 64


def flat(tensor: Tensor) -> Tensor:
    """With at most one axis of positions."""
    return tensor.flatten(2) if tensor.dim() > 3 else tensor


def cut(x: Tensor, is_smoothed: bool) -> Iterator[tuple[slice, ...]]:
    """Places of pieces of (N, C) or (N, C, positions).

    Sums over classes have another order where a row or a position is alone: for smoothed labels
    there are two rows at least, and positions are not cut.
    """
    row_bytes = x.shape[1] * x.element_size()
    every = slice(None)
    if x.dim() == 2:
        count = max(2, PIECE_BYTES // row_bytes)
        starts = range(0, max(1, x.shape[0] - 1), count)
        for start in starts:
            yield slice(start, start + count if start != starts[-1] else None), every
        return
    count = max(1, PIECE_BYTES // (row_bytes * x.shape[2]))
    width = x.shape[2]
    if width * row_bytes > PIECE_BYTES and not is_smoothed:
        width = max(VECTOR, PIECE_BYTES // row_bytes // VECTOR * VECTOR)
    for start in range(0, x.shape[0], count):
        for place in range(0, x.shape[2], width):
            yield slice(start, start + count), every, slice(place, place + width)


def copy(source: Tensor, to: Tensor) -> Tensor:
    """Matrix by matrix: torch is quick to copy one that lies the other way round."""
    if source.dim() == 2:
        return to.copy_(source)
    for one, two in zip(source, to, strict=True):
        if two.is_contiguous():
            two.copy_(one)
        else:
            two.mT.copy_(one.mT)
    return to


class Space:
    """Memory for pieces at work, used again for each."""

    def __init__(self, x: Tensor, dtype: torch.dtype, is_smoothed: bool) -> None:
        count = max(x[piece].numel() for piece in cut(x, is_smoothed))
        self._space = torch.empty((3, count), dtype=dtype)

    def view(self, number: int, like: Tensor) -> Tensor:
        """One of three, in the shape of another tensor."""
        return self._space[number, : like.numel()].view(like.shape)

    def dense(self, x: Tensor) -> Tensor:
        """A piece as it is, or contiguous and in the right type in the first space."""
        if x.is_contiguous() and x.dtype == self._space.dtype:
            return x
        return copy(x, self.view(0, x))
