"""Operations element by element, and those that only move elements.

What they make follows from what they, or those before them, have saved. A product of a tensor with
exact rows (RMSNorm, `normalize`), the gate of an MLP, a scale for each channel: all of them are a
few operations away from tensors that are kept anyway.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from elbowroom.keep.activations.coordinates import known_flat_places
from elbowroom.keep.activations.needs import RESHAPES, kind_of
from elbowroom.keep.activations.operators import normalisation
from elbowroom.keep.activations.operators.expressions import (
    Constant,
    Elementwise,
    Expanded,
    Expression,
    Given,
    Leaf,
    Permuted,
    Reshaped,
    value_of,
)
from elbowroom.keep.activations.operators.record import Derivation, held, record_of

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry, Records

# Operations between a tensor and what is kept, at most: each is run again in backward.
_DEPTH = 8

_Function = Callable[..., Tensor]

# By the slot that has their operand, where they save it.
_UNARY: dict[str, tuple[str, _Function]] = {
    "Silu": ("self", functional.silu),
    "Mish": ("self", functional.mish),
    "Hardswish": ("self", functional.hardswish),
    "Sigmoid": ("", torch.sigmoid),
    "Tanh": ("", torch.tanh),
    "Neg": ("", torch.neg),
}
_BINARY: dict[str, _Function] = {"Mul": torch.mul, "Div": torch.div}
# Those of which only some forms are one function of two tensors.
_FORMS = {"Div": "DivBackward0", "Mul": "MulBackward0"}

# Their functions bend sharply: of values with errors they would be off to one side.
_BENT: dict[str, Callable[[Any], _Function]] = {
    "Relu": lambda node: torch.relu,
    "LeakyRelu": lambda node: partial(
        functional.leaky_relu, negative_slope=node._saved_negative_slope
    ),
    "Hardtanh": lambda node: partial(
        functional.hardtanh, min_val=node._saved_min_val, max_val=node._saved_max_val
    ),
    "Hardsigmoid": lambda node: functional.hardsigmoid,
}

# These have saved what they made.
_RESULTS = frozenset({"Sigmoid", "Tanh", "Exp", "Rsqrt", "Sqrt", "Reciprocal", "Softmax"})

KINDS = frozenset({*_UNARY, *_BINARY, *_BENT, "Gelu", "Pow", "Add", "Sub", "Rsub", *_RESULTS})
"""Kinds of nodes that the values of others pass through."""


def derivation_of(tensor: Tensor, node: Any, records: "Records", exact: bool) -> Derivation | None:
    """How a tensor that a node made follows from what is kept."""
    found = _Search(records, exact).output_of(node, 0, _DEPTH, is_last=True)
    if found is None or math.prod(found.shape) != tensor.numel():
        return None
    if _is_plain(found):
        return None
    shape = tuple(tensor.shape)
    expression = found if found.shape == shape else Reshaped(found, shape)
    entries = list(dict.fromkeys(e for leaf in expression.leaves() for e in _entries_of(leaf)))
    near = [entry for entry in entries if entry.is_near]
    # An error that is repeated adds up in a way that nobody has reckoned with.
    if near and (exact or any(math.prod(e.shape) != tensor.numel() for e in near)):
        return None
    places = expression.probed()
    expected = None if places is None else expression.at(places)
    if not places or expected is None:
        return None
    flat = known_flat_places(places, shape)
    source = max(entries, key=lambda e: (e.is_near, math.prod(e.shape)))
    return Derivation(
        ("Expression",),
        source,
        tuple(e for e in entries if e is not source),
        lambda: expression.apply(value_of),
        shape,
        expected.dtype,
        lambda: expected,
        lambda: flat,
        is_rounded=any(
            leaf.derivation.is_rounded for leaf in expression.leaves() if isinstance(leaf, Given)
        ),
        expression=expression,
    )


def _entries_of(leaf: Leaf | Given) -> "tuple[Entry, ...]":
    if isinstance(leaf, Leaf):
        return (leaf.entry,)
    return leaf.derivation.source, *leaf.derivation.others


def _is_plain(expression: Expression) -> bool:
    """Whether nothing is computed: then it is another view, or a copy."""
    while isinstance(expression, Reshaped | Permuted | Expanded):
        expression = expression.part
    return isinstance(expression, Leaf)


class _Search:
    """From a node back to what is kept."""

    def __init__(self, records: "Records", exact: bool) -> None:
        self._records, self._exact = records, exact

    def output_of(
        self, node: Any, place: int, depth: int, *, is_last: bool = False
    ) -> Expression | None:
        """Of one of its outputs.

        Args:
            node: May be None.
            place: Of the output.
            depth: How many operations there may be.
            is_last: Only elements are moved after it.
        """
        if node is None or depth == 0:
            return None
        kind = kind_of(node)
        is_first = is_last and depth == _DEPTH
        if not is_first:
            if node._sequence_nr() in self._records.changed:
                return None
            entry = self._records.output(node, place)
            if entry is not None:
                return Leaf(entry)
        if kind in RESHAPES or kind in ("Permute", "Transpose", "T", "Expand", "Clone"):
            return self._moved(node, kind, depth, is_last=is_last)
        if place != 0:
            return None
        if kind in normalisation.RULES:
            record = record_of(node, self._records)
            rule = normalisation.RULES[kind]
            found = None if record is None else rule(node, record, self._records, self._exact)
            return None if found is None else Given(found)
        if kind in _RESULTS and not is_first:
            result = self._held(node, "result")
            if result is not None:
                return Leaf(result)
        function, slots = self._function_of(node, kind)
        if function is None:
            return None
        parts = [self._operand(node, number, slot, depth - 1) for number, slot in enumerate(slots)]
        known = [part for part in parts if part is not None]
        return Elementwise(function, tuple(known)) if len(known) == len(slots) else None

    def _function_of(self, node: Any, kind: str) -> tuple[_Function | None, tuple[str, ...]]:
        """What is computed, of which slots: empty names where nothing is saved."""
        if kind in _UNARY:
            slot, function = _UNARY[kind]
            return function, (slot,)
        if kind == "Gelu":
            return partial(functional.gelu, approximate=node._saved_approximate), ("self",)
        if kind == "Pow" and isinstance(node._saved_exponent, int | float):
            exponent = node._saved_exponent
            return (lambda x: torch.pow(x, exponent)), ("self",)
        if kind in _BINARY and node.name() == _FORMS[kind]:
            return _BINARY[kind], ("self", "other")
        if kind in ("Add", "Sub") and node.name().endswith("Backward0"):
            operation, alpha = (torch.add if kind == "Add" else torch.sub), node._saved_alpha
            return partial(operation, alpha=alpha), ("", "")
        if node.name() == "RsubBackward1" and node._saved_alpha == 1:
            return torch.rsub, ("", "")
        if kind in _BENT and self._exact:
            return _BENT[kind](node), ("",)
        if kind == "ToCopy":
            to = node._input_metadata[0]
            return (lambda x: x.to(to.dtype)) if to.device.type == "cpu" else None, ("",)
        return None, ()

    def _operand(self, node: Any, number: int, slot: str, depth: int) -> Expression | None:
        entry = self._held(node, slot) if slot else None
        if entry is not None:
            return Leaf(entry)
        following = node.next_functions
        before, place = following[number] if number < len(following) else (None, 0)
        if before is not None:
            return self.output_of(before, place, depth)
        return self._number(node, slot)

    def _number(self, node: Any, slot: str) -> Expression | None:
        """Of a product or a sum with one: autograd shows it, or we have seen it."""
        if not slot:
            found = self._records.numbers.get(node._sequence_nr())
            return None if found is None else Constant(found)
        record = record_of(node, self._records)
        if record is None or slot in record.slots:
            return None
        # Numbers go past the hooks.
        found = getattr(node, "_saved_" + slot)
        return Constant(found) if isinstance(found, Tensor) and found.dim() == 0 else None

    def _held(self, node: Any, slot: str) -> "Entry | None":
        record = record_of(node, self._records)
        return None if record is None else held(record, slot)

    def _moved(self, node: Any, kind: str, depth: int, *, is_last: bool) -> Expression | None:
        # Kernels may round by the place of a value in memory: of exact ones no copy in another
        # order may lie between two operations.
        if kind == "Clone" and self._exact and not is_last:
            return None
        before, place = node.next_functions[0]
        part = self.output_of(before, place, depth - 1, is_last=is_last)
        if part is None or kind == "Clone":
            return part
        rank = len(part.shape)
        if kind == "Permute":
            return Permuted(part, tuple(_signed(axis) % rank for axis in node._saved_dims))
        if kind in ("Transpose", "T"):
            order = list(range(rank))
            one, two = (0, rank - 1) if kind == "T" else (node._saved_dim0, node._saved_dim1)
            one, two = _signed(one) % rank, _signed(two) % rank
            order[one], order[two] = two, one
            return Permuted(part, tuple(order))
        shape = tuple(node._input_metadata[0].shape)
        if kind == "Expand":
            return Expanded(part, shape)
        return Reshaped(part, shape) if math.prod(shape) == math.prod(part.shape) else None


def _signed(axis: int) -> int:
    """Autograd shows it without a sign."""
    return axis - 2**64 if axis > 2**63 else axis
