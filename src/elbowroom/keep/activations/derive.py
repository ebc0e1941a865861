"""Tensors that need not be kept: they follow from what their producer keeps already.

GELU, SiLU, LayerNorm and dropout save their input (or mask) for their own backward. When the next
layer saves their output too, that output is computed again from the input when backward wants it.
So is its product with a tensor that has no gradient, such as a mask.

So is the output of a ReLU behind a normalisation, and that of a BatchNorm where everything is kept
to the last bit. Within bounds the ReLU leaves one bit a value: which are above zero must not follow
from values that have an error.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import functional

from elbowroom.keep.activations.entries import values_at_places
from elbowroom.keep.activations.masks import Bits, pack_sign
from elbowroom.keep.activations.needs import RESHAPES, Need, kind_of, need_of
from elbowroom.keep.activations.operators import elementwise, normalisation
from elbowroom.keep.activations.operators.record import (
    Derivation,
    Rule,
    held,
    is_dense,
    record_of,
)
from elbowroom.keep.activations.products import is_above_zero, made_by, places_within, values_at
from elbowroom.keep.activations.proofs import fits, is_as_expected

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry, Record, Records, Use


@dataclass(frozen=True, slots=True)
class Derived:
    """Computed from another entry when it is wanted."""

    derivation: Derivation
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    signs: Bits | None = None
    """Which values are above zero, where all others are zero."""

    method: str = "derive"

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return 0 if self.signs is None else self.signs.nbytes

    @property
    def sources(self) -> "tuple[Entry, ...]":
        """What its values come from."""
        return self.derivation.source, *self.derivation.others

    def restore(self) -> Tensor:
        """Make it again."""
        for entry in (self.derivation.source, *self.derivation.others):
            if entry.payload is not None and entry.payload.method == "keep":
                # Not a copy: changed since, it would give other values.
                entry.check_version()
        return self.make()

    def make(self) -> Tensor:
        """The same, without asking whether sources are what they were."""
        found = self.derivation.apply().reshape(self.shape)
        if found.stride() != self.stride and not _lies_alike(found, self.stride):
            found = found.new_empty_strided(self.shape, self.stride).copy_(found)
        # Its own memory: what is masked has been through an operation.
        return found if self.signs is None else found.mul_(self.signs.restore())

    def link(self, uses: "Iterable[Use]") -> None:
        """Whoever uses its values uses what they come from."""
        path, sources = self.derivation.path, [self.derivation.source]
        if self.derivation.expression is not None:
            sources.extend(self.derivation.others)
        readers = [
            replace(use, path=path)
            for use in uses
            if self.signs is None or need_of(use.kind, use.slot) is not Need.SIGN
        ]
        for source in sources:
            source.uses.extend(readers)

    def has_made(self, tensor: Tensor) -> bool:
        """Whether a tensor has memory of its own, and is not a view of the source."""
        source = self.derivation.source.values()
        return source.untyped_storage()._cdata != tensor.untyped_storage()._cdata


def derive(
    tensor: Tensor, producer: Any, records: "Records", *, exact: bool, masked: bool
) -> Derived | None:
    """How the tensor follows from kept entries, if it does.

    Args:
        tensor: What is saved.
        producer: The node that made it.
        records: What its node, and those before it, have saved.
        exact: The same bits are asked for.
        masked: Also if it takes a bit a value.
    """
    if producer is None or not is_dense(tensor):
        return None
    derivation = _output_of(producer, records, exact, tensor.numel())
    derivation = derivation or elementwise.derivation_of(tensor, producer, records, exact)
    if derivation is None or not (
        fits(tensor, derivation, exact) and is_as_expected(tensor, derivation)
    ):
        return None
    shape, stride = tuple(tensor.shape), tensor.stride()
    if not derivation.is_masked:
        return Derived(derivation, shape, stride)
    return Derived(derivation, shape, stride, pack_sign(tensor)) if masked else None


def _lies_alike(tensor: Tensor, stride: tuple[int, ...]) -> bool:
    """Whether strides differ at most where there is nothing to step to."""
    sizes = zip(tensor.shape, tensor.stride(), stride, strict=True)
    return all(size == 1 or own == other for size, own, other in sizes)


def _output_of(node: Any, records: "Records", exact: bool, count: int) -> Derivation | None:
    first = node
    for _ in range(4):
        if node is None or not _hands_on(node, count):
            break
        if node is not first and node._sequence_nr() in records.changed:
            return None
        node = node.next_functions[0][0]
    if node is None:
        return None
    record = record_of(node, records)
    rule = None if record is None else _RULES.get(record.kind)
    return None if record is None or rule is None else rule(node, record, records, exact)


def _hands_on(node: Any, count: int) -> bool:
    """Whether a node gives the elements of its input as they are: `count` of them."""
    kind = kind_of(node)
    # A product of batches of matrices expands both to one shape, even where they have it.
    return kind in RESHAPES or (kind == "Expand" and math.prod(node._saved_self_sym_sizes) == count)


def _gelu(node: Any, record: "Record", records: "Records", exact: bool) -> Derivation | None:
    source = held(record, "self")
    if source is None:
        return None
    approximate = node._saved_approximate

    def function(x: Tensor) -> Tensor:
        return functional.gelu(x, approximate=approximate)

    return _elementwise("Gelu", source, function)


def _silu(node: Any, record: "Record", records: "Records", exact: bool) -> Derivation | None:
    source = held(record, "self")
    if source is None:
        return None
    return _elementwise("Silu", source, functional.silu)


def _elementwise(kind: str, source: "Entry", function: Callable[[Tensor], Tensor]) -> Derivation:
    return Derivation(
        (kind,),
        source,
        (),
        lambda: function(source.values()),
        source.shape,
        source.dtype,
        lambda: function(source.some_values()),
    )


def _relu(node: Any, record: "Record", records: "Records", exact: bool) -> Derivation | None:
    before = node.next_functions[0][0]
    if before is not None and before._sequence_nr() in records.changed:
        return None
    known = None if before is None else record_of(before, records)
    if known is None:
        return None
    if known.kind == "NativeBatchNorm":
        inner = normalisation.batch_norm(before, known, records, exact)
    elif known.kind == "NativeLayerNorm":
        inner = normalisation.layer_norm(before, known, records, exact)
    else:
        return None
    if inner is None:
        return None
    some = inner.some
    return replace(
        inner,
        path=("Relu", *inner.path),
        apply=(lambda: inner.apply().relu_()) if exact else inner.apply,
        some=None if some is None else lambda: some().relu(),
        is_masked=not exact,
    )


def _product(node: Any, record: "Record", records: "Records", exact: bool) -> Derivation | None:
    """Of what follows from kept entries and a tensor without gradient: a mask or a scale."""
    if len(node.next_functions) < 2:
        return None
    axis = 0 if node.next_functions[1][0] is None else 1
    mask, (before, output) = held(record, ("other", "self")[axis]), node.next_functions[axis]
    if mask is None or before is None or record.entry(("self", "other")[axis]) is not None:
        return None
    if before._sequence_nr() in records.changed:
        return None
    # Its own errors would come on top, and nobody reckons with them.
    if mask.is_near:
        return None
    given, made = made_by(before, output), made_by(node, 0)
    if given is None or made is None:
        return None
    inner = _output_of(before, records, exact, math.prod(given[0])) or _result_of(before, records)
    if inner is None or (math.prod(inner.shape), inner.dtype) != (math.prod(given[0]), given[1]):
        return None
    if inner.is_masked and not is_above_zero(mask.values()):
        return None
    (shape, _), (full, dtype), some = given, made, inner.some
    places = inner.places or inner.source.places
    if shape != full:
        places = partial(places_within, places, shape, full)

    def at_places() -> Tensor:
        assert some is not None
        return some() * values_at(mask, full, places())

    return replace(
        inner,
        path=("Mul", *inner.path),
        others=(*inner.others, mask),
        apply=lambda: inner.apply().reshape(shape).mul(mask.values()),
        shape=full,
        dtype=dtype,
        some=None if some is None else at_places,
        places=places,
        masks=(*inner.masks, mask),
    )


def _result_of(node: Any, records: "Records") -> Derivation | None:
    """What a node has saved of its own output, such as a softmax."""
    record = record_of(node, records)
    source = None if record is None or record.kind not in _KEEP_RESULTS else held(record, "result")
    if source is None:
        return None
    return Derivation((), source, (), source.values, source.shape, source.dtype)


SOURCES = frozenset({"Gelu", "Silu", "Mul", *normalisation.RULES, *elementwise.KINDS})
"""Kinds of nodes whose output follows from what they save."""

_KEEP_RESULTS = frozenset({"Softmax", "SafeSoftmax", "Sigmoid", "Tanh", "Exp"})

_RULES: dict[str, Rule] = {
    "Gelu": _gelu,
    "Silu": _silu,
    "Relu": _relu,
    "Mul": _product,
    **normalisation.RULES,
}


def note_values(entry: "Entry", tensor: Tensor) -> None:
    """A few, for what derives from the tensor to be compared with."""
    if entry.probe is None and tensor.numel() and any(use.kind in SOURCES for use in entry.uses):
        entry.probe = values_at_places(tensor)


def is_bearable(derived: Derived, *, exact: bool, is_short: bool) -> bool:
    """Whether making it again takes little beside it.

    What follows from several large tensors needs all of them while its layer is at work, and where
    these follow from others in their turn, as along the residual stream of a transformer, whole
    chains of them. Without errors that is the only way to save anything; else encoding is better.
    """
    large = _large(derived)
    if is_short:
        return len(large) < 2
    if exact or len(large) < 2:
        return True
    return all(len(_large(s.payload)) < 2 for s in large if isinstance(s.payload, Derived))


def _large(derived: Derived) -> "list[Entry]":
    size = derived.derivation.source.nbytes_plain
    return [
        s
        for s in set(derived.sources)
        if 4 * s.nbytes_plain >= size and not (s.payload is not None and s.payload.method == "bits")
    ]
