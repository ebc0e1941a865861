"""Whether a tensor really is what a derivation makes, before it is let go."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from elbowroom.keep.activations.entries import coordinates_of, values_at_places

if TYPE_CHECKING:
    from elbowroom.keep.activations.operators.record import Derivation


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
    wide = torch.promote_types(tensor.dtype, torch.float32)
    found, expected = found.to(wide), derivation.some().to(wide)
    size = expected.nan_to_num(0, 0, 0).abs().mean()
    return torch.allclose(found, expected, rough, rough * float(size), equal_nan=True)


def _taken(tensor: Tensor, places: Tensor) -> Tensor:
    """Values at places in row-major order."""
    return tensor[coordinates_of(places, tuple(tensor.shape))]
