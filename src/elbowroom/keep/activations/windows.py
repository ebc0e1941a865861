"""Indices of a pooling layer: each points into a window, so a few bits are enough.

Whole indices take twice the memory of the values that they lead to. Where memory is short backward
gets a tensor without any, and the pooling asks for the indices of some samples at a time.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elbowroom.codec.places import Windows
from elbowroom.keep.activations.convolutions import PIECE_BYTES
from elbowroom.keep.activations.faults import Faults
from elbowroom.keep.activations.stand_ins import StandIn

_aten = torch.ops.aten

# Kinds of nodes that read the shape of their input, and do not mind where it lies.
ASK_FOR_SHAPES = frozenset({"MaxPool2DWithIndices"})

# Fewer indices are not worth a call from the dispatcher into Python.
LEAST_BYTES = 4 << 20


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

    def defer(self, faults: Faults) -> Tensor:
        """To be made when an operation wants it; itself where that saves nothing."""
        if len(self.shape) < 4 or self.shape[0] < 2 or 8 * math.prod(self.shape) < LEAST_BYTES:
            return self.restore()
        return Deferred.of(self, faults)

    def part(self, first: int, end: int) -> Tensor:
        """The indices of some samples, row-major."""
        each = self.places.numel() // self.shape[0]
        places = self.places[first * each : end * each]
        return self.windows.expand(places, (end - first, *self.shape[1:]))


class Deferred(StandIn):
    """Stands for indices that are not there."""

    payload: Windowed

    @staticmethod
    def of(payload: Windowed, faults: Faults) -> "Deferred":
        """In their shape, without their memory."""
        empty = torch.zeros(1, dtype=torch.int64).expand(payload.shape)
        found = torch.Tensor._make_subclass(Deferred, empty)
        found.payload, found.make = payload, payload.restore
        found.again, found.faults = payload.restore, faults
        return found


def _backward(given: Deferred, args: Any, kwargs: Any) -> Tensor | None:
    """Of a pooling, some samples at a time."""
    gradient, x, *how, last = args
    if last is not given or kwargs:
        return None
    out = torch.empty_like(x)
    step = max(1, PIECE_BYTES * x.shape[0] // max(x.nbytes, 1))
    for first in range(0, x.shape[0], step):
        some = slice(first, first + step)
        index = given.payload.part(first, min(first + step, x.shape[0]))
        out[some] = _aten.max_pool2d_with_indices_backward.default(
            gradient[some], x[some], *how, index
        )
    return out


Deferred.ways = {
    _aten.detach.default: lambda given, args, kwargs: Deferred.of(given.payload, given.faults),
    _aten.max_pool2d_with_indices_backward.default: _backward,
}


def pack_windows(index: Tensor, windows: Windows) -> Windowed | None:
    """None when an index lies outside its window: then it is not what it seems."""
    if index.dim() < 3 or not index.is_cpu or index.numel() == 0:
        return None
    places = windows.pack(index.contiguous())
    if places is None:
        return None
    return Windowed(places, windows, tuple(index.shape), index.stride())
