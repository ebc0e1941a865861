"""Indices of a pooling layer: each points into a window, so a few bits are enough."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elbowroom.codec import Blob, Bound, decode, encode


@dataclass(frozen=True, slots=True)
class Pooling:
    """The geometry of a two-dimensional max pooling."""

    width: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @classmethod
    def of_node(cls, node: Any, width: int) -> "Pooling":
        """Read from the autograd node; an empty stride means the kernel's size."""
        pair = lambda v: (v[0], v[-1])  # noqa: E731
        kernel = pair(node._saved_kernel_size)
        stride = pair(node._saved_stride) if len(node._saved_stride) else kernel
        return cls(width, kernel, stride, pair(node._saved_padding), pair(node._saved_dilation))

    def corners(self, height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Row and column of the first element of every window, as far as it is inside."""
        rows = torch.arange(height, device=device) * self.stride[0] - self.padding[0]
        columns = torch.arange(width, device=device) * self.stride[1] - self.padding[1]
        return rows.view(-1, 1), columns

    def place_of(self, index: Tensor) -> Tensor:
        """Where in its window each index of the whole plane points."""
        rows, columns = self.corners(index.shape[-2], index.shape[-1], index.device)
        row = index // self.width
        column = index - row * self.width
        row = (row - rows) // self.dilation[0]
        return row * self.kernel[1] + (column - columns) // self.dilation[1]

    def index_of(self, place: Tensor) -> Tensor:
        """Undo `place_of`."""
        rows, columns = self.corners(place.shape[-2], place.shape[-1], place.device)
        row = place // self.kernel[1]
        column = place.to(torch.int64) - row.to(torch.int64) * self.kernel[1]
        row = row.to(torch.int64) * self.dilation[0] + rows
        return row * self.width + (column * self.dilation[1] + columns)


# Indices worked on at once: their 64-bit temporaries should not be noticed beside the tensors.
_RUN = 1 << 18


@dataclass(frozen=True, slots=True)
class Windowed:
    """Places inside the windows, and the windows."""

    blob: Blob
    pooling: Pooling
    method: str = "window"

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.blob.nbytes

    def restore(self) -> Tensor:
        """Make it again."""
        places = decode(self.blob)
        index = torch.empty_like(places, dtype=torch.int64)
        for part, out in zip(_runs(places), _runs(index), strict=True):
            out.copy_(self.pooling.index_of(part))
        return index


def pack_windows(index: Tensor, pooling: Pooling, like: Blob | None) -> Windowed | None:
    """None when an index lies outside its window: then it is not what it seems."""
    if pooling.kernel[0] * pooling.kernel[1] > 256 or index.dim() < 3:
        return None
    places = torch.empty_like(index, dtype=torch.uint8)
    for part, out in zip(_runs(index), _runs(places), strict=True):
        out.copy_(pooling.place_of(part))
        # Cheap beside the pooling, and proof against every odd case of padding and ceil_mode.
        if not torch.equal(pooling.index_of(out), part):
            return None
    return Windowed(encode(places, Bound.lossless(), like=like), pooling)


def _runs(tensor: Tensor) -> list[Tensor]:
    """Parts along the first axis, of a size that caches like."""
    rows = max(1, tensor.shape[0] * _RUN // max(1, tensor.numel()))
    return list(tensor.split(rows))
