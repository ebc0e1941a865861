"""Tensors that need not be kept: they follow from what their producer keeps already.

GELU, SiLU, LayerNorm and dropout save their input (or mask) for their own backward. When the next
layer saves their output too, that output is computed again from the input when backward wants it.

So are the outputs of BatchNorm, and of a ReLU behind a normalisation, where everything is kept to
the last bit. Within bounds they are kept as well: the input of a BatchNorm bears errors two to four
times as large as the input of the convolution behind it, of which half is zeros besides, so that
one tensor at the tighter bound and a mask would take as many bytes as both.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from elbowroom.keep.activations.needs import RESHAPES, is_accumulator, kind_of

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry, Record, Use

Records = dict[int, "Record"]


@dataclass(frozen=True, slots=True)
class Derivation:
    """How an output follows from entries that are kept anyway."""

    path: tuple[str, ...]
    """Kinds of the nodes passed, from the output back to what is kept."""

    source: "Entry"
    """What the values come from."""

    others: tuple["Entry", ...]
    """Masks, means and the like: exact."""

    apply: Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Derived:
    """Computed from another entry when it is wanted."""

    derivation: Derivation
    shape: tuple[int, ...]
    method: str = "derive"
    nbytes: int = 0

    def restore(self) -> Tensor:
        """Make it again."""
        return self.derivation.apply().reshape(self.shape)

    def link(self, uses: "Iterable[Use]") -> None:
        """Whoever uses it uses the source."""
        source, path = self.derivation.source, self.derivation.path
        source.uses.extend(replace(use, path=path) for use in uses)

    def has_made(self, tensor: Tensor) -> bool:
        """Whether a tensor has memory of its own, and is not a view of the source."""
        source = self.derivation.source.values()
        return source.untyped_storage()._cdata != tensor.untyped_storage()._cdata


def derive(tensor: Tensor, producer: Any, records: Records, *, exact: bool) -> Derived | None:
    """How the tensor follows from kept entries, if it does; `exact` asks for the same bits."""
    if not tensor.is_contiguous():
        return None
    derivation = _output_of(producer, records, exact, tensor.numel())
    return None if derivation is None else Derived(derivation, tuple(tensor.shape))


def _output_of(node: Any, records: Records, exact: bool, count: int) -> Derivation | None:
    for _ in range(4):
        if node is None or not _hands_on(node, count):
            break
        node = node.next_functions[0][0]
    if node is None:
        return None
    record = records.get(node._sequence_nr())
    rule = None if record is None else _RULES.get(record.kind)
    return None if record is None or rule is None else rule(node, record, records, exact)


def _hands_on(node: Any, count: int) -> bool:
    """Whether a node gives the elements of its input as they are: `count` of them."""
    kind = kind_of(node)
    # A product of batches of matrices expands both to one shape, even where they have it.
    return kind in RESHAPES or (kind == "Expand" and math.prod(node._saved_self_sym_sizes) == count)


def _held(record: "Record", slot: str) -> "Entry | None":
    """The entry of a slot, if it holds values that can be had again."""
    entry = record.entry(slot)
    return entry if entry is not None and entry.has_values else None


def _gelu(node: Any, record: "Record", records: Records, exact: bool) -> Derivation | None:
    source = _held(record, "self")
    if source is None:
        return None
    approximate = node._saved_approximate
    return Derivation(
        ("Gelu",), source, (), lambda: functional.gelu(source.values(), approximate=approximate)
    )


def _silu(node: Any, record: "Record", records: Records, exact: bool) -> Derivation | None:
    source = _held(record, "self")
    if source is None:
        return None
    return Derivation(("Silu",), source, (), lambda: functional.silu(source.values()))


def _layer_norm(node: Any, record: "Record", records: Records, exact: bool) -> Derivation | None:
    source, mean, scale = (_held(record, slot) for slot in ("input", "result1", "result2"))
    weight, bias = (_held(record, slot) for slot in ("weight", "bias"))
    if source is None or mean is None or scale is None or source.dtype != mean.dtype:
        return None
    if ("bias" in record.slots) != (bias is not None):
        return None
    if exact:
        if record.eps is None:
            return None
        eps, shape = record.eps, tuple(node._saved_normalized_shape)

        def again() -> Tensor:
            return torch.native_layer_norm(
                source.values(),
                shape,
                None if weight is None else weight.values(),
                None if bias is None else bias.values(),
                eps,
            )[0]

        return Derivation(("NativeLayerNorm",), source, (), again)

    def apply() -> Tensor:
        # With the exact mean and scale: those of the values within the bound would be biased.
        y = (source.values() - mean.values()).mul_(scale.values())
        if weight is not None:
            y.mul_(weight.values())
        return y if bias is None else y.add_(bias.values())

    others = tuple(e for e in (mean, scale, weight, bias) if e is not None)
    return Derivation(("NativeLayerNorm",), source, others, apply)


def _batch_norm(node: Any, record: "Record", records: Records, exact: bool) -> Derivation | None:
    source, weight, last = (
        _held(record, "input"),
        _held(record, "weight"),
        node.next_functions[2][0],
    )
    # Of a bias that is not trained, or follows from something else, nothing is to be had here.
    if not exact or source is None or weight is None or last is None:
        return None
    if not node._saved_training or not is_accumulator(last):
        return None
    # A copy: backward itself does not read it, so that nobody would tell of a change.
    bias, eps = last.variable.detach().clone(), node._saved_eps

    def again() -> Tensor:
        x = source.values()
        return torch.native_batch_norm(x, weight.values(), bias, None, None, True, 0.0, eps)[0]

    return Derivation(("NativeBatchNorm",), source, (), again)


def _relu(node: Any, record: "Record", records: Records, exact: bool) -> Derivation | None:
    before = node.next_functions[0][0]
    if not exact or before is None or kind_of(before) not in _NORMS:
        return None
    known = records.get(before._sequence_nr())
    inner = None if known is None else _RULES[known.kind](before, known, records, exact)
    if inner is None:
        return None
    return Derivation(
        ("Relu", *inner.path), inner.source, inner.others, lambda: inner.apply().relu_()
    )


def _dropout(node: Any, record: "Record", records: Records, exact: bool) -> Derivation | None:
    mask = _held(record, "other")
    if mask is None or record.entry("self") is not None or node.next_functions[1][0] is not None:
        return None
    inner = _output_of(node.next_functions[0][0], records, exact, math.prod(mask.shape))
    inner = inner or _result_of(node.next_functions[0][0], records)
    if inner is None:
        return None
    return Derivation(
        ("Mul", *inner.path),
        inner.source,
        (*inner.others, mask),
        lambda: inner.apply().reshape(mask.shape).mul(mask.values()),
    )


def _result_of(node: Any, records: Records) -> Derivation | None:
    """What a node has saved of its own output, such as a softmax."""
    record = None if node is None else records.get(node._sequence_nr())
    source = None if record is None or record.kind not in _KEEP_RESULTS else _held(record, "result")
    return None if source is None else Derivation((), source, (), source.values)


_NORMS = frozenset({"NativeBatchNorm", "NativeLayerNorm"})
_KEEP_RESULTS = frozenset({"Softmax", "SafeSoftmax", "Sigmoid", "Tanh", "Exp"})

_Rule = Callable[[Any, "Record", Records, bool], Derivation | None]
_RULES: dict[str, _Rule] = {
    "Gelu": _gelu,
    "Silu": _silu,
    "NativeLayerNorm": _layer_norm,
    "NativeBatchNorm": _batch_norm,
    "Relu": _relu,
    "Mul": _dropout,
}
