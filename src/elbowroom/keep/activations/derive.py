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

import torch
from torch import Tensor
from torch.nn import functional

from elbowroom.keep.activations.masks import Bits, pack_sign
from elbowroom.keep.activations.needs import RESHAPES, Need, is_accumulator, kind_of, need_of
from elbowroom.keep.activations.products import is_above_zero, made_by, places_within, values_at
from elbowroom.keep.activations.proofs import fits, is_as_expected

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


@dataclass(frozen=True, slots=True)
class Derived:
    """Computed from another entry when it is wanted."""

    derivation: Derivation
    shape: tuple[int, ...]
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
        found = self.derivation.apply().reshape(self.shape).contiguous()
        # Its own memory: what is masked has been through an operation.
        return found if self.signs is None else found.mul_(self.signs.restore())

    def link(self, uses: "Iterable[Use]") -> None:
        """Whoever uses its values uses the source."""
        source, path = self.derivation.source, self.derivation.path
        source.uses.extend(
            replace(use, path=path)
            for use in uses
            if self.signs is None or need_of(use.kind, use.slot) is not Need.SIGN
        )

    def has_made(self, tensor: Tensor) -> bool:
        """Whether a tensor has memory of its own, and is not a view of the source."""
        source = self.derivation.source.values()
        return source.untyped_storage()._cdata != tensor.untyped_storage()._cdata


def derive(
    tensor: Tensor, producer: Any, records: Records, *, exact: bool, masked: bool
) -> Derived | None:
    """How the tensor follows from kept entries, if it does.

    Args:
        tensor: What is saved.
        producer: The node that made it.
        records: What its node, and those before it, have saved.
        exact: The same bits are asked for.
        masked: Also if it takes a bit a value.
    """
    if not tensor.is_contiguous():
        return None
    derivation = _output_of(producer, records, exact, tensor.numel())
    if derivation is None or not (
        fits(tensor, derivation, exact) and is_as_expected(tensor, derivation)
    ):
        return None
    if not derivation.is_masked:
        return Derived(derivation, tuple(tensor.shape))
    return Derived(derivation, tuple(tensor.shape), pack_sign(tensor)) if masked else None


def _output_of(node: Any, records: Records, exact: bool, count: int) -> Derivation | None:
    for _ in range(4):
        if node is None or not _hands_on(node, count):
            break
        node = node.next_functions[0][0]
    if node is None:
        return None
    record = _record_of(node, records)
    rule = None if record is None else _RULES.get(record.kind)
    return None if record is None or rule is None else rule(node, record, records, exact)


def _record_of(node: Any, records: Records) -> "Record | None":
    """Nodes of other threads have numbers of their own."""
    record = None if node is None else records.get(node._sequence_nr())
    return record if record is not None and record.kind == kind_of(node) else None


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

    def function(x: Tensor) -> Tensor:
        return functional.gelu(x, approximate=approximate)

    return _elementwise("Gelu", source, function)


def _silu(node: Any, record: "Record", records: Records, exact: bool) -> Derivation | None:
    source = _held(record, "self")
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


def _layer_norm(node: Any, record: "Record", records: Records, exact: bool) -> Derivation | None:
    source, mean, scale = (_held(record, slot) for slot in ("input", "result1", "result2"))
    weight, bias = (_held(record, slot) for slot in ("weight", "bias"))
    if source is None or mean is None or scale is None or source.dtype != mean.dtype:
        return None
    if ("bias" in record.slots) != (bias is not None):
        return None

    def some() -> Tensor:
        width = math.prod(source.shape) // math.prod(mean.shape)
        rows, columns = source.places() // width, source.places() % width
        y = source.some_values() - mean.values().flatten()[rows]
        y.mul_(scale.values().flatten()[rows])
        for entry, join in ((weight, y.mul_), (bias, y.add_)):
            if entry is not None:
                join(entry.values().flatten()[columns])
        return y

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

        held = tuple(e for e in (weight, bias) if e is not None)
        return Derivation(
            ("NativeLayerNorm",), source, held, again, source.shape, source.dtype, some
        )

    def apply() -> Tensor:
        # With the exact mean and scale: those of the values within the bound would be biased.
        y = (source.values() - mean.values()).mul_(scale.values())
        if weight is not None:
            y.mul_(weight.values())
        return y if bias is None else y.add_(bias.values())

    others = tuple(e for e in (mean, scale, weight, bias) if e is not None)
    return Derivation(
        ("NativeLayerNorm",),
        source,
        others,
        apply,
        source.shape,
        source.dtype,
        some,
        norm=record.number,
        is_rounded=True,
    )


def _batch_norm(node: Any, record: "Record", records: Records, exact: bool) -> Derivation | None:
    # Within bounds only what a ReLU makes of it: others derive from it in their turn.
    return _normalised(node, record, exact=True) if exact else None


def _normalised(node: Any, record: "Record", *, exact: bool) -> Derivation | None:
    """The output of a BatchNorm in training."""
    source, weight, mean, scale = (
        _held(record, slot) for slot in ("input", "weight", "result1", "result2")
    )
    last = node.next_functions[2][0]
    # Of a bias that is not trained, or follows from something else, nothing is to be had here.
    if source is None or weight is None or last is None or mean is None or scale is None:
        return None
    if not node._saved_training or not is_accumulator(last):
        return None
    # A copy: backward itself does not read it, so that nobody would tell of a change.
    bias, gain, eps = last.variable.detach().clone(), weight.values().clone(), node._saved_eps

    def some() -> Tensor:
        channels = source.places() // math.prod(source.shape[2:]) % source.shape[1]
        y = source.some_values() - mean.values()[channels]
        return y * (scale.values() * gain)[channels] + bias[channels]

    def again() -> Tensor:
        x = source.values()
        return torch.native_batch_norm(x, gain, bias, None, None, True, 0.0, eps)[0]

    def within() -> Tensor:
        # With the exact mean and scale: those of the values within the bound would be biased.
        usual, spread = mean.values(), scale.values().pow(-2) - eps
        x = source.values()
        return torch.native_batch_norm(x, gain, bias, usual, spread, False, 0.0, eps)[0]

    shape, dtype = source.shape, source.dtype
    if exact:
        return Derivation(("NativeBatchNorm",), source, (), again, shape, dtype, some)
    return Derivation(
        ("NativeBatchNorm",),
        source,
        (mean, scale),
        within,
        shape,
        dtype,
        some,
        norm=record.number,
        is_rounded=True,
    )


def _relu(node: Any, record: "Record", records: Records, exact: bool) -> Derivation | None:
    before = node.next_functions[0][0]
    known = None if before is None else _record_of(before, records)
    if known is None:
        return None
    if known.kind == "NativeBatchNorm":
        inner = _normalised(before, known, exact=exact)
    elif known.kind == "NativeLayerNorm":
        inner = _layer_norm(before, known, records, exact)
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


def _product(node: Any, record: "Record", records: Records, exact: bool) -> Derivation | None:
    """Of what follows from kept entries and a tensor without gradient: a mask or a scale."""
    axis = 0 if node.next_functions[1][0] is None else 1
    mask, (before, output) = _held(record, ("other", "self")[axis]), node.next_functions[axis]
    if mask is None or before is None or record.entry(("self", "other")[axis]) is not None:
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


def _result_of(node: Any, records: Records) -> Derivation | None:
    """What a node has saved of its own output, such as a softmax."""
    record = _record_of(node, records)
    source = None if record is None or record.kind not in _KEEP_RESULTS else _held(record, "result")
    if source is None:
        return None
    return Derivation((), source, (), source.values, source.shape, source.dtype)


SOURCES = frozenset({"Gelu", "Silu", "NativeLayerNorm", "NativeBatchNorm", "Mul"})
"""Kinds of nodes whose output follows from what they save."""

_KEEP_RESULTS = frozenset({"Softmax", "SafeSoftmax", "Sigmoid", "Tanh", "Exp"})

_Rule = Callable[[Any, "Record", Records, bool], Derivation | None]
_RULES: dict[str, _Rule] = {
    "Gelu": _gelu,
    "Silu": _silu,
    "NativeLayerNorm": _layer_norm,
    "NativeBatchNorm": _batch_norm,
    "Relu": _relu,
    "Mul": _product,
}
