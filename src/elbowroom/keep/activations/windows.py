"""Indices of a pooling layer: each points into a window, so a few bits are enough."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elbowroom import _native
from elbowroom.codec.threads import thread_count


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

    def of_outputs(self, height: int, width: int) -> _native.Pooling | None:
        """For the kernels; None where a window has too many places for a byte."""
        try:
            return _native.Pooling(
                height, width, self.width, self.kernel, self.stride, self.padding, self.dilation
            )
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Windowed:
    """Places inside the windows, and the windows."""

    places: Tensor
    pooling: _native.Pooling
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    method: str = "window"

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.places.numel()

    def restore(self) -> Tensor:
        """Make it again."""
        index = torch.empty(self.shape, dtype=torch.int64)
        planes = self.places.numel() // self.pooling.plane_nbytes
        threads = thread_count(None, 8 * index.numel())
        self.pooling.expand(self.places.data_ptr(), planes, index.data_ptr(), threads)
        if index.stride() == self.stride:
            return index
        return torch.empty_strided(self.shape, self.stride, dtype=torch.int64).copy_(index)


def pack_windows(index: Tensor, pooling: Pooling) -> Windowed | None:
    """None when an index lies outside its window: then it is not what it seems."""
    if index.dim() < 3 or not index.is_cpu or index.numel() == 0:
        return None
    geometry = pooling.of_outputs(index.shape[-2], index.shape[-1])
    if geometry is None:
        return None
    rows = index.contiguous()
    planes = index.numel() // (index.shape[-2] * index.shape[-1])
    places = torch.empty(planes * geometry.plane_nbytes, dtype=torch.uint8)
    threads = thread_count(None, 8 * index.numel())
    if not geometry.pack(rows.data_ptr(), planes, places.data_ptr(), threads):
        return None
    return Windowed(places, geometry, tuple(index.shape), index.stride())
