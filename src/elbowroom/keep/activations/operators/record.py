"""What a tensor follows from, and the records of nodes by which that is found."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from elbowroom.keep.activations.needs import kind_of

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry, Record, Records
    from elbowroom.keep.activations.operators.expressions import Expression


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

    shape: tuple[int, ...]
    dtype: torch.dtype
    """Of what `apply` gives."""

    some: Callable[[], Tensor] | None = None
    """What is to be expected of a few values, to rounding."""

    places: Callable[[], Tensor] | None = None
    """Where these are in what `apply` gives, row-major; usually where the source has its few."""

    masks: tuple["Entry", ...] = ()
    """What the values are multiplied by on the way, of any shape that broadcasts."""

    norm: int = 0
    """Number of the normalisation that was passed: others may read the same source."""

    is_rounded: bool = False
    """Whether other operations make it than did: last bits differ, of an exact source too."""

    is_masked: bool = False
    """Whether what is not above zero is zero, which the values with their errors do not tell."""

    expression: "Expression | None" = None
    """What is computed, where it is more than one function of one tensor."""


Rule = Callable[[Any, "Record", "Records", bool], Derivation | None]
"""From a node, its record, those of others and whether bits must be the same."""


def record_of(node: Any, records: "Records") -> "Record | None":
    """The record of a node, unless it is another's: threads have numbers of their own."""
    record = None if node is None else records.get(node._sequence_nr())
    if record is None or record.is_foreign:
        return None
    return record if record.kind == kind_of(node) else None


def held(record: "Record", slot: str) -> "Entry | None":
    """The entry of a slot, if it holds values that can be had again."""
    entry = record.entry(slot)
    return entry if entry is not None and entry.has_values else None


def is_dense(tensor: Tensor) -> bool:
    """Whether it has its memory for itself, without gaps, in whatever order."""
    return tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(tensor)
