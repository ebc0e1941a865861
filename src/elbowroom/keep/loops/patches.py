"""A frame cut into patches of 64 values, and put together again."""

from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

SIDES = {1: (64,), 2: (8, 8), 3: (4, 4, 4)}
VALUES = 64

# A shorter axis counts shots, channels or the like, and no points of a grid.
_LEAST_POINTS = 16


@dataclass(frozen=True, slots=True)
class Tiling:
    """How frames of one shape are cut: the last `dims` axes are a grid, others a batch."""

    shape: tuple[int, ...]
    dims: int

    @classmethod
    def of(cls, shape: tuple[int, ...], dims: int | None = None) -> "Tiling | None":
        """The last axes, at most three, that are long enough; None where there is none."""
        if dims is None:
            dims = 0
            while dims < min(3, len(shape)) and shape[-1 - dims] >= _LEAST_POINTS:
                dims += 1
        is_cut = 1 <= dims <= min(3, len(shape)) and prod(shape) > 0
        return cls(tuple(shape), dims) if is_cut else None

    @property
    def sides(self) -> tuple[int, ...]:
        """Of a patch."""
        return SIDES[self.dims]

    @property
    def counts(self) -> tuple[int, ...]:
        """Of patches along each axis of the grid; those at the far border may be filled up."""
        points = self.shape[-self.dims :]
        return tuple(-(-n // side) for n, side in zip(points, self.sides, strict=True))

    def cut(self, frame: Tensor) -> Tensor:
        """Batch x counts x 64, filled up with zeros."""
        grid = frame.reshape(-1, *self.shape[-self.dims :])
        gaps = [n * s - p for n, s, p in zip(self.counts, self.sides, grid.shape[1:], strict=True)]
        if any(gaps):
            grid = functional.pad(grid, [n for gap in reversed(gaps) for n in (0, gap)])
        pairs = [n for pair in zip(self.counts, self.sides, strict=True) for n in pair]
        order = [0, *range(1, 2 * self.dims, 2), *range(2, 2 * self.dims + 1, 2)]
        split = grid.reshape(-1, *pairs).permute(order)
        return split.reshape(grid.shape[0], *self.counts, VALUES)

    def join(self, patches: Tensor) -> Tensor:
        """The frame, without what it was filled up with."""
        split = patches.reshape(-1, *self.counts, *self.sides)
        order = [0]
        for axis in range(self.dims):
            order += [1 + axis, 1 + self.dims + axis]
        lengths = [n * side for n, side in zip(self.counts, self.sides, strict=True)]
        grid = split.permute(order).reshape(-1, *lengths)
        for axis, points in enumerate(self.shape[-self.dims :], 1):
            grid = grid.narrow(axis, 0, points)
        return grid.reshape(self.shape)


def with_neighbours(patches: Tensor, dims: int) -> Tensor:
    """Beside the channels of a patch those of all that touch it; zeros beyond the border."""
    wide = functional.pad(patches, [0, 0] + [1, 1] * dims)
    counts = patches.shape[1:-1]
    shifted = []
    for offsets in product(range(3), repeat=dims):
        part = wide
        for axis, (offset, count) in enumerate(zip(offsets, counts, strict=True), 1):
            part = part.narrow(axis, offset, count)
        shifted.append(part)
    return torch.cat(shifted, -1)
