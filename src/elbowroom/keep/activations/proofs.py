"""Whether a tensor really is what a derivation makes, before it is let go."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from elbowroom.keep.activations.entries import values_at_places

if TYPE_CHECKING:
    from elbowroom.keep.activations.derive import Derivation, Derived


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
    found = values_at_places(tensor) if places is None else tensor.view(-1)[places()]
    wide = torch.promote_types(tensor.dtype, torch.float32)
    found, expected = found.to(wide), derivation.some().to(wide)
    return torch.allclose(found, expected, rough, rough, equal_nan=True)


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
    if (found.shape, found.stride(), found.dtype) != (tensor.shape, tensor.stride(), tensor.dtype):
        return False
    if exact:
        # Not a number is not equal to itself.
        return torch.equal(found, tensor) or torch.allclose(found, tensor, 0, 0, equal_nan=True)
    is_finite = tensor.isfinite()
    if not torch.equal(is_finite, found.isfinite()):
        return False
    error, size = (t[is_finite].double().square().sum() for t in (found - tensor, tensor))
    return bool(error <= size)
