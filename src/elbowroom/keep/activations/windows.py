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

    def corners(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Row and column of the first element of every window, as far as it is inside."""
        rows = torch.arange(height) * self.stride[0] - self.padding[0]
        columns = torch.arange(width) * self.stride[1] - self.padding[1]
        return rows.view(-1, 1), columns


@dataclass(frozen=True, slots=True)
class Windowed:
    """Places inside the windows, and the windows."""

    blob: Blob
    pooling: Pooling
    strides: tuple[int, ...]
    method: str = "window"

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.blob.nbytes

    def restore(self) -> Tensor:
        """Make it again."""
        places = decode(self.blob).to(torch.int64)
        p = self.pooling
        rows, columns = p.corners(places.shape[-2], places.shape[-1])
        row = torch.div(places, p.kernel[1], rounding_mode="floor")
        column = places - row * p.kernel[1]
        row = row * p.dilation[0] + rows.to(places.device)
        column = column * p.dilation[1] + columns.to(places.device)
        return row * p.width + column


def pack_windows(index: Tensor, pooling: Pooling) -> Windowed | None:
    """None when an index lies outside its window: then it is not what it seems."""
    if pooling.kernel[0] * pooling.kernel[1] > 256 or index.dim() < 3:
        return None
    rows, columns = pooling.corners(index.shape[-2], index.shape[-1])
    row = torch.div(index, pooling.width, rounding_mode="floor")
    column = index - row * pooling.width
    row = torch.div(row - rows.to(index.device), pooling.dilation[0], rounding_mode="floor")
    column = torch.div(
        column - columns.to(index.device), pooling.dilation[1], rounding_mode="floor"
    )
    place = row * pooling.kernel[1] + column
    small = place.to(torch.uint8)
    packed = Windowed(encode(small, Bound.lossless()), pooling, tuple(index.stride()))
    # Cheap beside the pooling, and proof against every odd case of padding and ceil_mode.
    return packed if torch.equal(packed.restore(), index) else None
