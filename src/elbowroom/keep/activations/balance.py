"""Gradients that are zero but for rounding stay so.

A bias before a normalisation and the bias of attention's keys have such gradients: what one
position adds another takes away, because normalised values have no mean and the rows of a softmax
sum to one. Adam would divide the noise of a decoded tensor by its own size and let these
parameters wander. So decoded values get what makes the terms cancel: the mean that the
normalisation has saved, rows that sum to one, an attention output that follows from the decoded
queries, keys and values. The correction is far smaller than the bound.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from elbowroom.keep.activations.needs import RESHAPES, details_of, is_accumulator, kind_of

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry, Record
    from elbowroom.keep.activations.payloads import Coded

ATTENTION = "ScaledDotProductFlashAttentionForCpu"
_LIKE_VIEWS = RESHAPES | {
    *("T", "Transpose", "Permute", "Expand", "Select", "Slice", "Unbind", "Split"),
    *("SplitWithSizes", "Clone"),
}
# Where the bias stands among the inputs of a node.
_BIAS = {"Convolution": 2, "Addmm": 0}


class Balance(Protocol):
    """What is done to decoded values before anybody reads them."""

    def apply(self, tensor: Tensor) -> Tensor:
        """In place, where nobody else has the tensor."""
        ...


@dataclass(frozen=True, slots=True)
class Mean:
    """Channels have the mean that their normalisation has saved."""

    mean: "Entry"

    def apply(self, tensor: Tensor) -> Tensor:
        """Take off what errors have added to the mean."""
        mean = self.mean.values()
        leading = 1 if mean.dim() == 1 else 2
        axes = list(range(2, tensor.dim()))
        off = tensor.mean([0, *axes] if leading == 1 else axes, dtype=torch.float64)
        off = off.reshape(mean.shape).sub_(mean).to(tensor.dtype)
        shape = (1, -1) if leading == 1 else tuple(mean.shape)
        return tensor.sub_(off.reshape(*shape, *[1] * len(axes)))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a softmax sum to one."""

    axis: int

    def apply(self, tensor: Tensor) -> Tensor:
        """Take off what errors have added to the sum, a part from each value that is not zero."""
        is_there = torch.ne(tensor, 0, out=torch.empty_like(tensor))
        total, count = (
            t.sum(self.axis, keepdim=True, dtype=torch.float32) for t in (tensor, is_there)
        )
        # Rows in which everything is masked have no sum.
        off = torch.where(total > 0.5, (total - 1) / count.clamp_(min=1), 0.0)
        return tensor.sub_(is_there.mul_(off))


def balanced(coded: "Coded", entry: "Entry", records: "dict[int, Record]") -> "Coded":
    """With what the values that will be decoded need."""
    # In an expanded tensor several values are one.
    balance = _balance_of(entry, records) if coded.layout is None else None
    return coded if balance is None else replace(coded, balance=balance)


def _balance_of(entry: "Entry", records: "dict[int, Record]") -> Balance | None:
    for use in entry.uses:
        record = records.get(use.number)
        if record is None or use.path:
            continue
        if use.slot == "result" and use.kind in ("Softmax", "SafeSoftmax"):
            axis = record.details.get("dim")
            return None if axis is None else Rows(axis - 2**64 if axis > 2**63 else axis)
        if use.slot == "input" and use.kind in ("NativeBatchNorm", "NativeGroupNorm"):
            mean = record.entry("result1")
            if mean is None or not mean.has_values or mean.dtype != entry.dtype:
                continue
            shape = (*entry.shape[:2], 0, 0)
            # Groups of one channel; of a batch no statistics where they were given.
            count = shape[1] if use.kind == "NativeBatchNorm" else shape[0] * shape[1]
            if math.prod(mean.shape) != count:
                continue
            if comes_from_bias(entry.producer):
                return Mean(mean)
    return None


def comes_from_bias(node: Any) -> bool:
    """Whether a layer with a bias made what the node hands on, whatever shape it has now."""
    for _ in range(8):
        if node is None:
            return False
        kind = kind_of(node)
        place = _BIAS.get(kind)
        if place is not None:
            bias = node.next_functions[place][0]
            return bias is not None and is_accumulator(bias)
        if kind not in _LIKE_VIEWS:
            return False
        node = node.next_functions[0][0]
    return False


def describe(node: Any, record: "Record") -> None:
    """Note what decoded values of a node may need; asked in every pass."""
    if record.kind in (ATTENTION, "Softmax", "SafeSoftmax"):
        record.details = details_of(node)
    if record.kind == ATTENTION:
        record.details["is_balanced"] = comes_from_bias(node.next_functions[1][0])


class Attentions:
    """What attention had made, once more from its decoded queries, keys and values."""

    def __init__(self) -> None:
        self._made: dict[int, dict[str, Tensor]] = {}

    def restore(self, node: Any, entry: "Entry", records: "dict[int, Record]") -> Tensor | None:
        """For the node itself; None where it reads what was saved."""
        record = records.get(node._sequence_nr())
        if record is None or not record.details.get("is_balanced"):
            return None
        slot = next((s for s in ("output", "logsumexp") if record.entry(s) is entry), None)
        parts = [record.entry(name) for name in ("query", "key", "value")]
        if slot is None or not any(part is not None and part.is_near for part in parts):
            return None
        made = self._made.pop(record.number, None)
        if made is None or slot not in made:
            made = _attend(record)
        found = made.pop(slot)
        if made:
            self._made[record.number] = made
        return found


def _attend(record: "Record") -> dict[str, Tensor]:
    q, k, v = (record.entry(name) for name in ("query", "key", "value"))
    assert q is not None and k is not None and v is not None
    mask = record.entry("attn_mask")
    with torch.no_grad():
        output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q.values(),
            k.values(),
            v.values(),
            0.0,
            record.details["is_causal"],
            attn_mask=None if mask is None else mask.values(),
            scale=record.details["scale"],
        )
    return {"output": output, "logsumexp": logsumexp}
