"""How errors grow in functions, and on the way from a source to what derives from it."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from elbowroom.keep.activations.coordinates import coordinates_of
from elbowroom.keep.activations.derive import Derived
from elbowroom.keep.activations.entries import Entry, Record
from elbowroom.keep.activations.journey import energy
from elbowroom.keep.activations.masks import Bits
from elbowroom.keep.activations.operators.expressions import (
    Constant,
    Elementwise,
    Expanded,
    Expression,
    Given,
    Leaf,
    Permuted,
    Reshaped,
)
from elbowroom.keep.activations.operators.record import Derivation
from elbowroom.keep.activations.payloads import Aliased, dense_form, take_sample
from elbowroom.keep.activations.policy import spread

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Gelu": functional.gelu,
    "Silu": functional.silu,
}


def error_size(entry: Entry) -> float:
    """Standard deviation of the entry's errors: as they are, or as they are likely to be soon."""
    if entry.error is not None:
        return entry.error
    site = entry.site
    bound = site.bound if site.bound is not None else 0.5 * spread(site.sample)
    return bound / 3**0.5


def sample_of(entry: Entry) -> Tensor | None:
    """Some values: of those that derive from others, what is derived."""
    if isinstance(entry.payload, Derived | Aliased):
        return take_sample(dense_form(entry.values())[0]).to("cpu", torch.float32)
    return entry.site.sample


def changes(function: Callable[[Tensor], Tensor], entry: Entry) -> list[Tensor]:
    """Of a function's values, by errors as large as the entry's."""
    sample, bound = sample_of(entry), 3**0.5 * error_size(entry)
    assert sample is not None
    x = sample.double()
    return [function(x + bound * place) - function(x) for place in _PLACES]


def change(function: Callable[[Tensor], Tensor], entry: Entry) -> float:
    """Mean squared change of a function by the entry's errors, for each unit of their variance."""
    found = changes(function, entry)
    total = sum(float(each.square().mean()) for each in found) / len(found)
    return total / max(error_size(entry) ** 2, 1e-30)


# Of an error that is uniform between -1 and 1, in the middle of six equal parts.
_PLACES = tuple((2 * i + 1) / 6 - 1 for i in range(6))


def sources_of(entry: Entry, records: dict[int, Record]) -> list[tuple[Entry, float]]:
    """Entries with errors of their own that it follows from, and how those grow on the way.

    Squared, on average. What derives from one source twice has both parts.
    """
    if isinstance(entry.payload, Aliased):
        return sources_of(entry.payload.source, records)
    if not isinstance(entry.payload, Derived):
        return [(entry, 1.0)] if entry.bound > 0 or entry.is_open else []
    if entry.grown is None:
        # Once: many tensors may follow from this one, and from each other.
        found: dict[Entry, float] = {}
        for near, factor in _path_factors(entry.payload, records):
            for source, before in sources_of(near, records):
                found[source] = found.get(source, 0.0) + factor * before
        entry.grown = list(found.items())
    return entry.grown


def note_error(entry: Entry, records: dict[int, Record]) -> list[tuple[Entry, float]]:
    """Its sources, after the size of its errors has been noted."""
    found = sources_of(entry, records)
    if entry.error is None and isinstance(entry.payload, Derived | Aliased):
        entry.error = sum(factor * error_size(source) ** 2 for source, factor in found) ** 0.5
    return found


def _path_factors(derived: Derived, records: dict[int, Record]) -> list[tuple[Entry, float]]:
    expression = derived.derivation.expression
    if expression is None:
        source = derived.derivation.source
        return [(source, _path_factor(derived.derivation, derived, records))] * source.may_be_near
    return _expression_factors(expression, records)


def _expression_factors(
    expression: Expression, records: dict[int, Record]
) -> list[tuple[Entry, float]]:
    """Measured at some places: a leaf's values are moved by the size of its errors, up and down.

    Each value of the result depends on one of the leaf's, so that this is what independent errors
    of that size do to it.
    """
    leaves = list(dict.fromkeys(expression.leaves()))
    moved: _Moved | None = None
    found: list[tuple[Entry, float]] = []
    for leaf in leaves:
        if isinstance(leaf, Leaf):
            near, factor = leaf.entry, 1.0
        else:
            near = leaf.derivation.source
            factor = _path_factor(leaf.derivation, None, records)
        if not near.may_be_near:
            continue
        note_error(near, records)
        size = error_size(near) * factor**0.5
        if not size > 0:
            continue
        if moved is None:
            shape = expression.shape
            moved = _sampled(expression, shape, _some_places(shape, near.device), {})
        plain = moved(leaf, 0.0)
        change = sum(energy(moved(leaf, step) - plain) / 2 for step in (size, -size))
        found.append((near, factor * change / max(1, plain.numel()) / size**2))
    return found


_Places = tuple[Tensor, ...]
"""One tensor of indices for each axis."""

_Moved = Callable[[Leaf | Given, float], Tensor]
"""What is computed at some places where the values of one leaf are moved by a step."""

# Of what is derived from several tensors.
_PLACES_SEEN = 1 << 12


def _some_places(shape: tuple[int, ...], device: torch.device) -> _Places:
    """Anywhere in a tensor, the same every time."""
    count = math.prod(shape)
    if count <= _PLACES_SEEN:
        flat = torch.arange(count, device=device)
    else:
        generator = torch.Generator().manual_seed(count)
        flat = torch.randint(count, (_PLACES_SEEN,), generator=generator).to(device)
    return coordinates_of(flat, shape)


def _sampled(
    expression: Expression,
    shape: tuple[int, ...],
    places: _Places,
    known: dict[Leaf | Given, Tensor],
) -> _Moved:
    """Known are the values of leaves that have been read."""
    match expression:
        case Constant():
            number = expression.apply(known.__getitem__)
            return lambda leaf, step: number
        case Leaf() | Given():
            some = _some_values(expression, shape, places, known)
            # It may be read in several places.
            return lambda leaf, step: some + step if leaf == expression else some
        case Elementwise():
            shapes = [part.shape for part in expression.parts]
            parts = [
                _sampled(part, own, _behind(places, own), known)
                for part, own in zip(expression.parts, shapes, strict=True)
            ]
            return lambda leaf, step: expression.function(*(part(leaf, step) for part in parts))
        case Expanded():
            own = expression.part.shape
            return _sampled(expression.part, own, _behind(places, own), known)
        case Reshaped():
            own = expression.part.shape
            there = coordinates_of(_flat(places, shape), own)
            return _sampled(expression.part, own, there, known)
        case Permuted():
            order = expression.order
            there = tuple(places[order.index(axis)] for axis in range(len(order)))
            return _sampled(expression.part, expression.part.shape, there, known)
        case _:
            raise TypeError(f"no way to compute a part of {type(expression).__name__}")


def _some_values(
    leaf: Leaf | Given,
    shape: tuple[int, ...],
    places: _Places,
    known: dict[Leaf | Given, Tensor],
) -> Tensor:
    """Where a leaf is derived itself, only what its values there come from is read."""
    payload = leaf.entry.payload if isinstance(leaf, Leaf) and leaf not in known else None
    if isinstance(payload, Derived) and payload.signs is None:
        behind = payload.derivation.expression
        if behind is not None:
            own = behind.shape
            there = coordinates_of(_flat(places, shape), own)
            return _sampled(behind, own, there, known)(leaf, 0.0)
    if leaf not in known:
        known[leaf] = leaf.value()
    return known[leaf][places]


def _behind(places: _Places, shape: tuple[int, ...]) -> _Places:
    """In a tensor of this shape, which is broadcast."""
    own = places[len(places) - len(shape) :]
    return tuple(p if size > 1 else p * 0 for p, size in zip(own, shape, strict=True))


def _flat(places: _Places, shape: tuple[int, ...]) -> Tensor:
    """In row-major order; not remembered, as there are many of them."""
    flat = torch.zeros_like(places[0]) if places else torch.tensor(0)
    for place, size in zip(places, shape, strict=True):
        flat = flat * size + place
    return flat


def _path_factor(
    derivation: Derivation, derived: Derived | None, records: dict[int, Record]
) -> float:
    """How an error in the source grows on the way to what is derived from it (squared, mean)."""
    factor = 1.0
    source, signs = derivation.source, None if derived is None else derived.signs
    if "NativeBatchNorm" in derivation.path:
        factor *= _channels_factor(derivation, signs, records)
    elif signs is not None:
        mask = signs.restore()
        factor *= float(mask.sum(dtype=torch.float64)) / max(1, mask.numel())
    for kind in derivation.path:
        if kind in ("Gelu", "Silu") and sample_of(source) is not None:
            note_error(source, records)
            factor *= change(FUNCTIONS[kind], source)
        elif kind in ("NativeLayerNorm", "NativeGroupNorm"):
            factor *= _norm_factor(records.get(derivation.norm))
    for mask in derivation.masks:
        factor *= _mask_factor(mask, is_masked=derivation.is_masked)
    return factor


def _norm_factor(record: Record | None) -> float:
    scale = None if record is None else record.entry("result2")
    if record is None or scale is None:
        return 1.0
    weight = record.entry("weight")
    gain = 1.0 if weight is None else float(weight.values().float().square().mean())
    return gain * float(scale.values().float().square().mean())


def _channels_factor(
    derivation: Derivation, signs: Bits | None, records: dict[int, Record]
) -> float:
    """Of a normalisation over the batch: each channel has its gain, and its share above zero."""
    record = records.get(derivation.norm)
    scale = None if record is None else record.entry("result2")
    if record is None or scale is None:
        return 1.0
    weight = record.entry("weight")
    gains = scale.values().double().square()
    if weight is not None:
        gains = gains * weight.values().double().square()
    if signs is None:
        return float(gains.mean())
    mask = signs.restore().reshape(derivation.source.shape)
    axes = [axis for axis in range(mask.dim()) if axis != 1]
    return float((gains * mask.double().mean(axes)).mean())


def _mask_factor(mask: Entry, *, is_masked: bool) -> float:
    """Mean square of its values: one that broadcasts has each of them equally often."""
    values = mask.values()
    # What it leaves out counts among what is not above zero, where that is known.
    count = int(values.count_nonzero()) if is_masked else values.numel()
    return energy(values) / max(1, count)
