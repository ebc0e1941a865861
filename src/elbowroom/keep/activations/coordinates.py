"""Places in tensors: some of each, at which what follows from it is compared with what it was.

Shapes repeat in every pass, so that all of this is computed once for each.
"""

from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

Shape = tuple[int, ...]

# Values by which to tell whether what should follow from a tensor still does.
_PROBED = 16

_REMEMBERED = 4096


class Coordinates(tuple[Tensor, ...]):
    """One tensor of indices for each axis. Each is equal to itself only, and can be a key."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def are_at(self, other: "Coordinates") -> bool:
        """Whether they are the same places."""
        return self is other or all(map(torch.equal, self, other))


@lru_cache(maxsize=_REMEMBERED)
def places_in(count: int, device: torch.device) -> Tensor:
    """Some places from the first of so many to the last."""
    few = min(count, _PROBED)
    return torch.arange(few, device=device) * (count - 1) // max(1, few - 1)


@lru_cache(maxsize=_REMEMBERED)
def coordinates_in(count: int, shape: Shape, device: torch.device) -> Coordinates:
    """Those of `places_in`."""
    return coordinates_of(places_in(count, device), shape)


def coordinates_of(places: Tensor, shape: Shape) -> Coordinates:
    """Of places in row-major order; torch's own function takes a second to load."""
    found: list[Tensor] = []
    for size in reversed(shape):
        found.append(places % size)
        places = places // size
    return Coordinates(reversed(found))


def flat_places(places: Coordinates, shape: Shape) -> Tensor:
    """In row-major order."""
    flat = torch.zeros_like(places[0])
    for place, size in zip(places, shape, strict=True):
        flat = flat * size + place
    return flat


@lru_cache(maxsize=_REMEMBERED)
def known_flat_places(places: Coordinates, shape: Shape) -> Tensor:
    """The same of few places, which are asked for in every pass."""
    return flat_places(places, shape)


@lru_cache(maxsize=_REMEMBERED)
def moved(places: Coordinates, old: Shape, new: Shape) -> Coordinates:
    """From one shape of the same elements to another."""
    return coordinates_of(flat_places(places, old), new)


@lru_cache(maxsize=_REMEMBERED)
def permuted(places: Coordinates, order: Shape) -> Coordinates:
    """With axes in another order."""
    return Coordinates(places[axis] for axis in order)


@lru_cache(maxsize=_REMEMBERED)
def within(places: Coordinates, shape: Shape) -> Coordinates:
    """In a tensor of this shape, which broadcasts to the one that the places are in."""
    own = places[len(places) - len(shape) :]
    if len(own) == len(places) and all(size > 1 for size in shape):
        return places
    return Coordinates(p if size > 1 else p * 0 for p, size in zip(own, shape, strict=True))


@lru_cache(maxsize=_REMEMBERED)
def first_copies(places: Coordinates, rank: int) -> Coordinates:
    """In a tensor of higher rank that a smaller one broadcasts to."""
    return Coordinates((places[0] * 0,) * (rank - len(places)) + places)


def broadcast(shapes: Iterable[Shape]) -> Shape:
    """The shape that these have together.

    Torch's own function imports sympy, which takes 30 MB and half a second.
    """
    return _broadcast(tuple(shapes))


@lru_cache(maxsize=_REMEMBERED)
def _broadcast(shapes: tuple[Shape, ...]) -> Shape:
    found: list[int] = []
    for shape in shapes:
        found[:0] = [1] * (len(shape) - len(found))
        for axis, size in enumerate(shape, len(found) - len(shape)):
            if size != 1 and found[axis] not in (1, size):
                raise RuntimeError(f"shapes {tuple(found)} and {shape} do not broadcast")
            found[axis] = found[axis] if size == 1 else size
    return tuple(found)
