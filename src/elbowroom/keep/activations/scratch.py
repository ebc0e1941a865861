"""Decoded tensors that backward writes its results into.

A backward that reads a saved tensor mostly has a result of the same size. What was decoded for it
alone is memory of our own, so that the result can take its place: elementwise functions write over
what they have read, and convolutions and normalisations go piece by piece, of the batch or of the
channels. At its peak a layer's backward then has two tensors instead of three or, with the copies
that convolutions make of all their arguments, six; and pages that are warm.

A decoded tensor is handed to autograd as a stand-in for itself.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from elbowroom.keep.activations import convolutions
from elbowroom.keep.activations.faults import Faults
from elbowroom.keep.activations.stand_ins import StandIn, Way

_aten = torch.ops.aten

# Smaller results are not worth a call from the dispatcher into Python.
LEAST_BYTES = 1 << 20

# Normalisations below this take less time in one go: their results come from warm memory anyway.
_NORM_BYTES = 32 << 20
_NORM_PIECE_BYTES = 4 << 20

# Sums over pieces have another order, and each piece takes memory anew: neither for gradients that
# must have the same bits, nor where memory is not short.
_IN_PIECES = frozenset({"Convolution", "NativeBatchNorm"})
_IN_PLACE = frozenset(
    {"Relu", "LeakyRelu", "Elu", "Gelu", "Silu", "Tanh", "Sigmoid", "Mul"},
)


class _Known(StandIn):
    """A tensor that is there, under another name."""

    plain: Tensor

    @classmethod
    def over(cls, tensor: Tensor, again: Callable[[], Tensor], faults: Faults) -> Self:
        """The same memory."""
        found = torch.Tensor._make_subclass(cls, tensor)
        found.plain, found.make = tensor, lambda: tensor
        found.again, found.faults = again, faults
        return found


class Scratch(_Known):
    """A tensor that the next operation on it may write over."""


class Shown(_Known):
    """A tensor that others read too: convolutions go in pieces, and write elsewhere."""


def suits(kind: str, tensor: Tensor, *, in_pieces: bool) -> bool:
    """Whether the backward of such a node can make use of it, perhaps going piece by piece."""
    return (
        (kind in _IN_PLACE or (in_pieces and kind in _IN_PIECES))
        and tensor.is_cpu
        and tensor.is_floating_point()
        and tensor.nbytes >= LEAST_BYTES
        and _aten.is_non_overlapping_and_dense(tensor)
    )


# Given the place, and arguments with the place among them.
_InPlace = Callable[[Tensor, Any, Any], Any]


def _into(out: Any, name: str) -> _InPlace:
    """An elementwise function that is given the place of its result."""

    def way(place: Tensor, args: Any, kwargs: Any) -> Tensor | None:
        tensors = [a for a in args if isinstance(a, Tensor)]
        if any(a.shape != place.shape or a.dtype != place.dtype for a in tensors):
            return None
        # In another layout the result would lie elsewhere than plainly, and sums of it have
        # another order. Of a value that is expanded there is no layout.
        if any(a.stride() != place.stride() and any(a.stride()) for a in tensors):
            return None
        return out(*args, **kwargs, **{name: place})

    return way


def _normalise(place: Tensor, args: Any, kwargs: Any) -> Any:
    """A batch normalisation's gradients, some channels at a time."""
    gradient, x, *statistics, is_training, eps, mask = args
    if x is not place or kwargs or not mask[0] or x.nbytes < _NORM_BYTES or x.dim() < 2:
        return None
    count = min(x.shape[1] // max(1, torch.get_num_threads()), x.nbytes // _NORM_PIECE_BYTES)
    if count < 2:
        return None
    parts = [
        [None] * count if s is None or s.numel() == 0 else s.tensor_split(count) for s in statistics
    ]
    sums: list[list[Tensor]] = [[], []]
    pieces = zip(gradient.tensor_split(count, 1), x.tensor_split(count, 1), *parts, strict=True)
    for two, one, *mine in pieces:
        found = _aten.native_batch_norm_backward.default(two, one, *mine, is_training, eps, mask)
        one.copy_(found[0])
        for total, part in zip(sums, found[1:], strict=True):
            total.append(part)
    joined = [torch.cat(s) if m else None for s, m in zip(sums, mask[1:], strict=True)]
    return place, *joined


def _by_name(way: _InPlace) -> Way:
    """As a way of the stand-in, which is an argument under its own name."""

    def found(given: _Known, args: Any, kwargs: Any) -> Any:
        plain = tuple(given.plain if a is given else a for a in args)
        return way(given.plain, plain, kwargs)

    return found


_WAYS: dict[Any, _InPlace] = {
    _aten.convolution_backward.default: partial(convolutions.backward, is_over=True),
    _aten.native_batch_norm_backward.default: _normalise,
    _aten.mul.Tensor: _into(_aten.mul.out, "out"),
    _aten.threshold_backward.default: _into(_aten.threshold_backward.grad_input, "grad_input"),
    _aten.leaky_relu_backward.default: _into(_aten.leaky_relu_backward.grad_input, "grad_input"),
    _aten.elu_backward.default: _into(_aten.elu_backward.grad_input, "grad_input"),
    _aten.gelu_backward.default: _into(_aten.gelu_backward.grad_input, "grad_input"),
    _aten.silu_backward.default: _into(_aten.silu_backward.grad_input, "grad_input"),
    _aten.tanh_backward.default: _into(_aten.tanh_backward.grad_input, "grad_input"),
    _aten.sigmoid_backward.default: _into(_aten.sigmoid_backward.grad_input, "grad_input"),
}


def _detach(given: Any, args: Any, kwargs: Any) -> Tensor:
    """Autograd takes what a hook gives it by detaching it."""
    return type(given).over(given.plain.detach(), given.again, given.faults)


Scratch.ways = {
    _aten.detach.default: _detach,
    **{operation: _by_name(way) for operation, way in _WAYS.items()},
}
Shown.ways = {
    _aten.detach.default: _detach,
    _aten.convolution_backward.default: _by_name(partial(convolutions.backward, is_over=False)),
}
