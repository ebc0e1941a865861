"""Log-probabilities of targets, made of a piece of the logits at a time.

Plain PyTorch makes the log-probabilities of all classes, keeps them, and goes back through two more
tensors of that size. Only those of the targets go into the loss. Here backward makes the others
again from the logits, and writes each piece of the gradient over the logits it came from, where
nobody else has a use for them.

Kernels that work by rows give the same bits whatever rows come with them: of exact logits the
gradient is that of plain PyTorch to the last bit. Of logits within a bound the sum of exponentials
is known as it was, and so are the probabilities of the targets. p exp(e) is right on average once
the mean of exp(e) is taken off, and the gradient at the target has no error.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.payloads import Coded, Offloaded, Raw
from elbowroom.keep.activations.pieces import Space, copy, cut, flat
from elbowroom.keep.activations.readers import ALONE, count_holders

_aten: Any = torch.ops.aten
_core: Any = torch._C
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Manner:
    """How a loss is computed."""

    dtype: torch.dtype
    """Of log-probabilities."""

    ignore_index: int
    is_smoothed: bool

    keeps_layout: bool
    """Whether gradients may lie in memory as logits do.

    Plain PyTorch has them contiguous, and in another layout sums behind can have another order.
    """

    def places(self, target: Tensor) -> Tensor:
        """Classes, those to ignore somewhere within range: (N, 1) or (N, 1, positions)."""
        return flat(target.masked_fill(target == self.ignore_index, 0).unsqueeze(1))


class CrossEntropy(Function):
    """From logits (N, C, ...) and classes (N, ...) to log-probabilities of these classes.

    For smoothed labels the sum of all log-probabilities comes along, by the weights of classes if
    there are any. Classes must be within range, or the one to ignore.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        weight: Tensor | None,
        manner: "Manner",
    ) -> tuple[Tensor, Tensor | None]:
        """Both of the classes' shape."""
        ctx.set_materialize_grads(False)
        ctx.manner = manner
        dtype, is_smoothed = manner.dtype, manner.is_smoothed
        x, index = flat(logits), manner.places(target)
        picked = torch.empty(index.shape, dtype=dtype)
        summed = torch.empty(index.shape, dtype=dtype) if is_smoothed else None
        normaliser = torch.empty(index.shape, dtype=_wide(dtype))
        space = Space(x, dtype, is_smoothed)
        for piece in cut(x, is_smoothed):
            values = space.dense(x[piece])
            result = _aten._log_softmax.out(values, 1, False, out=space.view(1, values))
            picked[piece] = result.gather(1, index[piece])
            normaliser[piece] = _normaliser(values, index[piece], picked[piece])
            if summed is not None:
                summed[piece] = _weighted(result, weight).sum(1, keepdim=True)
        rows = torch.stack([picked.to(normaliser.dtype), normaliser])
        ctx.save_for_backward(logits, target, rows, weight)
        shape = target.shape
        return picked.view(shape), None if summed is None else summed.view(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """The gradient of the logits."""
        others = (None,) * 3
        manner: Manner = ctx.manner
        if torch.is_grad_enabled():
            return _once_more(ctx, gradients), *others
        held = ctx._raw_saved_tensors[0].data
        logits, target, rows, weight = ctx.saved_tensors
        logits = logits.detach()
        bound = held.bound if isinstance(held, Entry) else 0.0
        if not (bound > 0 or manner.keeps_layout or logits.is_contiguous()):
            gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
        elif isinstance(held, Entry) and claim(held, logits):
            gradient = logits
        else:
            gradient = torch.empty_like(logits)
        x, out, index = flat(logits), flat(gradient), manner.places(target)
        dtype = manner.dtype if bound == 0 else rows.dtype
        picked, summed = (
            None if g is None else g.reshape(index.shape).to(dtype) for g in gradients
        )
        if picked is None:
            picked = torch.zeros(index.shape, dtype=dtype)
        if weight is not None:
            weight = weight.to(dtype)
        space = Space(x, dtype, is_smoothed=False)
        for piece in cut(x, is_smoothed=False):
            arrived = (picked[piece], None if summed is None else summed[piece], weight)
            if bound > 0:
                few = rows[(slice(None), *piece)]
                _near(x[piece], out[piece], index[piece], arrived, few, bound, space)
            else:
                _exact(x[piece], out[piece], index[piece], arrived, space)
        return gradient, *others


Arrived = tuple[Tensor, Tensor | None, Tensor | None]
"""Gradients of the targets' log-probabilities and of the sums, and the weights of the sums."""


def _exact(x: Tensor, out: Tensor, index: Tensor, arrived: Arrived, space: "Space") -> None:
    """By the operations of plain PyTorch, in their order."""
    picked, summed, weight = arrived
    values = space.dense(x)
    result = _aten._log_softmax.out(values, 1, False, out=space.view(1, values))
    g = space.view(2, values).zero_().scatter_(1, index, picked)
    if summed is not None:
        g += summed if weight is None else _weighted(summed, weight)
    is_ready = out.is_contiguous() and out.dtype == g.dtype
    found = out if is_ready else space.view(0, values)
    _aten._log_softmax_backward_data.out(g, result, 1, g.dtype, out=found)
    if not is_ready:
        copy(found, out)


def _near(
    x: Tensor,
    out: Tensor,
    index: Tensor,
    arrived: Arrived,
    rows: Tensor,
    bound: float,
    space: "Space",
) -> None:
    """Of logits with errors, but for those that are zero."""
    picked, summed, weight = arrived
    probability, normaliser = rows[0].exp(), rows[1]
    shift = math.log(math.sinh(bound) / bound)
    found = out if out.dtype == rows.dtype else space.view(0, x)
    is_exact = x == 0
    torch.sub(x, normaliser + shift, out=found)
    if bool(is_exact.any()):
        found.add_(is_exact, alpha=shift)
    total = picked
    if summed is not None:
        total = total + summed * (x.shape[1] if weight is None else weight.sum())
    found.exp_().mul_(-total).scatter_(1, index, picked - probability * total)
    if summed is not None:
        found.add_(summed if weight is None else _weighted(summed, weight))
    if found is not out:
        out.copy_(found)


def _once_more(ctx: Any, gradients: tuple[Tensor | None, ...]) -> Tensor:
    """The same by operations that can be differentiated again."""
    logits, target, _, weight = ctx.saved_tensors
    manner: Manner = ctx.manner
    result = logits.to(manner.dtype).log_softmax(1)
    places = manner.places(target).view(target.shape).unsqueeze(1)
    outputs = [result.gather(1, places).squeeze(1)]
    if manner.is_smoothed:
        outputs.append(_weighted(result, weight).sum(1))
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=False) if g is not None]
    return torch.autograd.grad(
        [o for o, _ in pairs], logits, [g for _, g in pairs], create_graph=True
    )[0]


def _weighted(values: Tensor, weight: Tensor | None) -> Tensor:
    """By the weight of each class."""
    return values if weight is None else values * weight.view(-1, *[1] * (values.dim() - 2))


def _normaliser(values: Tensor, index: Tensor, picked: Tensor) -> Tensor:
    """Logarithm of the sum of exponentials."""
    if values.dtype not in _HALVES:
        found = values.gather(1, index).sub_(picked)
        if bool(found.isfinite().all()):
            return found
    return values.to(_wide(values.dtype)).logsumexp(1, keepdim=True)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _HALVES else dtype


def claim(entry: Entry, logits: Tensor) -> bool:
    """Whether nobody will look at these values any more: then they may be written over."""
    payload = entry.payload
    holders = count_holders(logits)
    if isinstance(payload, Coded | Offloaded):
        is_ours = holders == ALONE
    else:
        is_last = len(entry.uses) == 1 and not _core._autograd._get_current_graph_task_keep_graph()
        is_ours = isinstance(payload, Raw) and payload.owned and is_last and holders == ALONE + 1
        if is_ours:
            entry.spend()
    if is_ours:
        entry.recent = entry.warm = None
    return is_ours and _aten.is_non_overlapping_and_dense(logits)


def _slot(number: int) -> property:
    return property(lambda node: node._raw_saved_tensors[number].unpack())


# As those of torch's own nodes are found.
for _number, _name in enumerate(("logits", "target", "rows", "weight")):
    setattr(CrossEntropy._backward_cls, f"_saved_{_name}", _slot(_number))
