"""Convolutions that go through a batch piece by piece.

oneDNN copies whatever a convolution reads and writes into a layout of its own, so that a layer at
work takes twice the memory of its tensors. Of a piece of the batch it takes twice the piece. Other
sizes can have other last bits: none of this is done where bits must stay.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from elbowroom.keep.activations.faults import Faults
from elbowroom.keep.activations.untouched import is_plain

_aten = torch.ops.aten

# Large enough to keep threads busy, small enough for what is copied of each.
PIECE_BYTES = 8 << 20


class InPieces(TorchDispatchMode):
    """While it lasts, large convolutions on the host compute some samples at a time.

    It stands below autograd, whose nodes are those of the whole convolution.
    """

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called by the dispatcher for any operation."""

        def plainly() -> Any:
            return func(*args, **(kwargs or {}))

        def in_pieces() -> Any:
            found = _forward(*args)
            return plainly() if found is None else found

        if func is not _aten.convolution.default or kwargs:
            return plainly()
        what = "a convolution was computed in one go, since cutting its batch"
        return self._faults.attempt(what, in_pieces, plainly)


def is_convolution(function: Any) -> bool:
    """Whether a function of torch is one that may go in pieces."""
    return function in _FUNCTIONS


def _forward(x: Tensor, weight: Tensor, *how: Any) -> Tensor | None:
    given = [x, weight] if how[0] is None else [x, weight, how[0]]
    if not all(is_plain(t) and t.is_cpu and t.layout == torch.strided for t in given):
        return None
    if x.dim() != weight.dim() or min(how[1]) < 1 or weight.nbytes > PIECE_BYTES:
        return None
    count = count_pieces(x, max(x.nbytes, _result_bytes(x, weight, *how)))
    if count < 2:
        return None
    out, done = None, 0
    for part in x.tensor_split(count):
        found = _aten.convolution.default(part, weight, *how)
        if out is None:
            out = _like(found, x.shape[0])
        out[done : done + len(found)].copy_(found)
        done += len(found)
        del found
    return out


def backward(x: Tensor, args: Any, kwargs: Any, *, is_over: bool) -> Any:
    """A convolution's gradients, that of its input written over the input or into new memory."""
    gradient, given, weight, *how, mask = args
    count = count_pieces(x, max(x.nbytes, gradient.nbytes))
    if given is not x or kwargs or count < 2 or weight.nbytes > PIECE_BYTES:
        return None
    out, done = x if is_over else None, 0
    sums: list[Tensor | None] = [None, None]
    for one, two in zip(x.tensor_split(count), gradient.tensor_split(count), strict=True):
        mine, *more = _aten.convolution_backward.default(two, one, weight, *how, mask)
        if mask[0]:
            out = _like(mine, x.shape[0]) if out is None else out
            out[done : done + len(one)].copy_(mine)
        done += len(one)
        del mine
        # Many parts in half precision would not add up.
        sums = [
            None if part is None else _wide(part) if total is None else total.add_(part)
            for total, part in zip(sums, more, strict=True)
        ]
    found = (None if total is None else total.to(weight.dtype) for total in sums)
    return out if mask[0] else None, *found


def _wide(part: Tensor) -> Tensor:
    return part.float() if part.dtype in (torch.float16, torch.bfloat16) else part


def count_pieces(tensor: Tensor, nbytes: int) -> int:
    """Into how many a batch is cut of which so much goes through a layer."""
    return min(tensor.shape[0], nbytes // PIECE_BYTES)


def _result_bytes(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    is_transposed: bool,
    output_padding: list[int],
    groups: int,
) -> int:
    axes = range(x.dim() - 2)
    # A number alone counts for all axes.
    s, p, d, more = (
        [list(given)[axis % len(given)] for axis in axes]
        for given in (stride, padding, dilation, output_padding)
    )
    count = x.shape[0] * (weight.shape[1] * groups if is_transposed else weight.shape[0])
    for axis in axes:
        length, span = x.shape[2 + axis], d[axis] * (weight.shape[2 + axis] - 1) + 1
        if is_transposed:
            count *= (length - 1) * s[axis] - 2 * p[axis] + span + more[axis]
        else:
            count *= (length + 2 * p[axis] - span) // s[axis] + 1
    return count * x.element_size()


def _like(part: Tensor, batch: int) -> Tensor:
    """Memory for the whole batch, laid out as the part is."""
    shape = (batch, *part.shape[1:])
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(part.dim())
    if last is not None and not part.is_contiguous() and part.is_contiguous(memory_format=last):
        return torch.empty(shape, dtype=part.dtype, device=part.device, memory_format=last)
    return torch.empty(shape, dtype=part.dtype, device=part.device)


_FUNCTIONS = frozenset(
    {
        *(torch.conv1d, torch.conv2d, torch.conv3d),
        *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
    }
)
