"""Whether a tensor really is what a derivation makes, before it is let go."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from elbowroom.keep.activations.coordinates import coordinates_of
from elbowroom.keep.activations.entries import values_at_places
from elbowroom.keep.activations.faults import Faults

if TYPE_CHECKING:
    from elbowroom.keep.activations.derive import Derived
    from elbowroom.keep.activations.entries import Entry
    from elbowroom.keep.activations.operators.record import Derivation
    from elbowroom.keep.activations.policy import Policy


def fits(tensor: Tensor, derivation: "Derivation", exact: bool) -> bool:
    """Whether as many values of the same type come out, on the same device."""
    source, count = derivation.source, tensor.numel()
    if not exact and count != math.prod(source.shape):
        # An error that is repeated adds up in a way that nobody has reckoned with.
        return False
    made = (math.prod(derivation.shape), derivation.dtype, source.device)
    return made == (count, tensor.dtype, tensor.device)


def is_as_expected(tensor: Tensor, derivation: "Derivation") -> bool:
    """Whether values are not others, set through `.data` or by a weight changed meanwhile."""
    if derivation.some is None or not tensor.numel():
        return True
    rough = 1e-3 if tensor.dtype in (torch.float32, torch.float64) else 0.05
    places = derivation.places
    found = values_at_places(tensor) if places is None else _taken(tensor, places())
    expected = derivation.some()
    if found.is_complex() or expected.is_complex():
        return torch.allclose(found, expected, rough, equal_nan=True)
    return _are_close(found.tolist(), expected.tolist(), rough)


def _are_close(found: list[float], expected: list[float], rough: float) -> bool:
    """Of so few, numbers are quicker than tensors."""
    size = sum(abs(x) for x in expected if math.isfinite(x)) / max(1, len(expected))
    return all(
        x == y or abs(x - y) <= rough * (size + abs(y)) or (math.isnan(x) and math.isnan(y))
        for x, y in zip(found, expected, strict=True)
    )


def _taken(tensor: Tensor, places: Tensor) -> Tensor:
    """Values at places in row-major order."""
    return tensor[coordinates_of(places, tuple(tensor.shape))]


def is_proven(
    entry: "Entry", tensor: Tensor, derived: "Derived", policy: "Policy", faults: Faults
) -> bool:
    """Once for each place and form, made in forward: what fails there fails nowhere else.

    Where errors must not travel, only some readers may get those of the sources.
    """
    if not policy.may_follow(entry, derived.sources):
        return False
    proven, form = entry.site.proven, form_of(derived)
    if form not in proven:
        with faults.around("a saved tensor was kept as it is, since making it from others"):
            proven[form] = is_made(tensor, derived, exact=policy.is_exact)
    return proven.setdefault(form, False)


def form_of(derived: "Derived") -> Any:
    """All that says how it is made, but for sizes and values."""
    derivation = derived.derivation
    entries = (derivation.source, *derivation.others)
    kinds = tuple((e.dtype, e.is_row_major, tuple(n == 1 for n in e.shape)) for e in entries)
    return derivation.path, len(derived.shape), derived.signs is None, kinds


def is_made(tensor: Tensor, derived: "Derived", *, exact: bool) -> bool:
    """Whether the tensor comes out: the same bits, or as near as errors leave it."""
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        found = derived.make()
    if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
        return False
    if exact:
        # Not a number is not equal to itself.
        return torch.equal(found, tensor) or torch.allclose(found, tensor, 0, 0, equal_nan=True)
    # In few places: copies of large tensors would count among what the pass takes.
    few, expected = (values_at_places(t).double() for t in (found, tensor))
    if not torch.equal(few.isfinite(), expected.isfinite()):
        return False
    few, expected = (t[t.isfinite()] for t in (few, expected))
    return bool((few - expected).square().sum() <= expected.square().sum())
