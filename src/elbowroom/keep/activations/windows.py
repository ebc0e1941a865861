"""Indices of a pooling layer: each points into a window, so a few bits are enough."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elbowroom.codec.places import Windows


def windows_of(node: Any, width: int) -> Windows:
    """Read from the autograd node; an empty stride means the kernel's size."""
    pair = lambda v: (v[0], v[-1])  # noqa: E731
    kernel = pair(node._saved_kernel_size)
    stride = pair(node._saved_stride) if len(node._saved_stride) else kernel
    return Windows(width, kernel, stride, pair(node._saved_padding), pair(node._saved_dilation))


@dataclass(frozen=True, slots=True)
class Windowed:
    """Places inside the windows, and the windows."""

    places: Tensor
    windows: Windows
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    method: str = "window"

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.places.numel()

    def restore(self) -> Tensor:
        """Make it again."""
        index = self.windows.expand(self.places, self.shape)
        if index.stride() == self.stride:
            return index
        return torch.empty_strided(self.shape, self.stride, dtype=torch.int64).copy_(index)


def pack_windows(index: Tensor, windows: Windows) -> Windowed | None:
    """None when an index lies outside its window: then it is not what it seems."""
    if index.dim() < 3 or not index.is_cpu or index.numel() == 0:
        return None
    places = windows.pack(index.contiguous())
    if places is None:
        return None
    return Windowed(places, windows, tuple(index.shape), index.stride())
