"""Products of a tensor and a mask or a scale, either of which may be broadcast."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from elbowroom.keep.activations.coordinates import coordinates_of

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry


def is_above_zero(values: Tensor) -> bool:
    """Whether factors turn no sign, and leave zeros as they are."""
    least, most = values.aminmax() if values.numel() else (values.sum(), values.sum())
    return bool(least >= 0) and bool(most.isfinite())


def made_by(node: Any, output: int) -> tuple[tuple[int, ...], torch.dtype] | None:
    """Shape and type of one of a node's outputs; None of tensors that have no such shape."""
    made = node._input_metadata[output]
    return None if made.is_nested_tensor else (tuple(made.shape), made.dtype)


def places_within(
    places: Callable[[], Tensor], shape: tuple[int, ...], full: tuple[int, ...]
) -> Tensor:
    """Where the first copies of these values are in a tensor that the shape broadcasts to."""
    found = torch.zeros_like(places())
    for axis, index in enumerate(coordinates_of(places(), shape)):
        found += index * math.prod(full[len(full) - len(shape) + axis + 1 :])
    return found


def values_at(mask: "Entry", full: tuple[int, ...], places: Tensor) -> Tensor:
    """Values of a mask that broadcasts to the full shape."""
    if mask.probe is not None and mask.shape == full and torch.equal(places, mask.places()):
        return mask.probe
    return mask.values().expand(full)[coordinates_of(places, full)]
