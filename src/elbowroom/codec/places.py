"""Indices of a pooling as places in their windows: a few bits each, inside the process only."""

from dataclasses import dataclass

import torch
from torch import Tensor

from elbowroom import _native
from elbowroom.codec.bits import lasting
from elbowroom.codec.threads import thread_count

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Windows:
    """The geometry of a two-dimensional pooling of planes whose rows have `width` items."""

    width: int
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def pack(self, index: Tensor) -> Tensor | None:
        """Places of row-major planes of indices; None when one lies outside its window."""
        kernels = self._kernels(index.shape[-2], index.shape[-1])
        if kernels is None:
            return None
        planes = index.numel() // (index.shape[-2] * index.shape[-1])
        places = lasting(planes * kernels.plane_nbytes)
        threads = thread_count(None, 8 * index.numel())
        inside = kernels.pack(index.data_ptr(), planes, places.data_ptr(), threads)
        return places if inside else None

    def expand(self, places: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Undo `pack`."""
        index = torch.empty(shape, dtype=torch.int64)
        kernels = self._kernels(shape[-2], shape[-1])
        assert kernels is not None
        planes = places.numel() // kernels.plane_nbytes
        threads = thread_count(None, 8 * index.numel())
        kernels.expand(places.data_ptr(), planes, index.data_ptr(), threads)
        return index

    def _kernels(self, height: int, width: int) -> _native.Pooling | None:
        try:
            return _native.Pooling(
                height, width, self.width, self.kernel, self.stride, self.padding, self.dilation
            )
        except ValueError:  # more places than a byte can tell
            return None
