"""Which tensors of a state may lose a little, and how much."""

import re
from collections.abc import Callable, Iterable, Mapping

from elbowroom.codec import Bound
from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint.layout import DTYPES
from elbowroom.store.checkpoint.snapshot import Piece

# Below this, headers weigh more than what is saved.
_LEAST_BYTES = 1 << 14
_KEY = re.compile(r"\['((?:[^'\\]|\\.)*)'\]")

BoundOf = Callable[[Piece], Bound | None]


class Rule:
    """Gives the bound of each tensor; None means that it stays exact."""

    def __init__(self, bounds: Mapping[str, Bound | None]) -> None:
        self._bounds = bounds

    def __call__(self, piece: Piece) -> Bound | None:
        """Of one tensor."""
        return _find(piece, self._bounds)

    @property
    def is_lossy(self) -> bool:
        """Whether any tensor may lose something."""
        return any(bound is not None for bound in self._bounds.values())

    def idle(self, pieces: Iterable[Piece]) -> list[str]:
        """Names that are those of no object and of no tensor."""
        keys = {key for piece in pieces for key in _KEY.findall(piece.where)}
        return sorted(self._bounds.keys() - keys)


def read_tolerance(tolerance: float | Mapping[str, Bound | float]) -> Rule:
    """A rule from what a user has given.

    A number is for the optimizer's moments: each value comes back within that share of itself,
    zeros as zeros. Relative to each value it has to be: an optimizer divides by the root of second
    moments, of which most are far smaller than the largest, and an error that is small for that
    one would make others zero. The model stays exact. A mapping says it all: names of objects
    (`model`) or of tensors (`exp_avg_sq`) with bounds, or shares as above; the tensor's own name
    counts first.
    """
    if isinstance(tolerance, Mapping):
        return Rule({name: _read_bound(name, value) for name, value in tolerance.items()})
    bound = _read_bound("tolerance", tolerance)
    return Rule({} if bound is None else {"optimizer": bound})


def _read_bound(name: str, value: Bound | float) -> Bound | None:
    if isinstance(value, Bound):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InvalidArgument(
            f"{name} must be a share from 0 (exact) to below 1, or a Bound, got {value!r}"
        )
    return Bound.pointwise_relative(value) if value else None


def _find(piece: Piece, bounds: Mapping[str, Bound | None]) -> Bound | None:
    dtype = DTYPES[piece.layout.dtype]
    if piece.layout.nbytes < _LEAST_BYTES or not dtype.is_floating_point or dtype.itemsize < 2:
        return None
    keys = _KEY.findall(piece.where)
    for key in (*keys[-1:], *keys[:1]):
        if key in bounds:
            return bounds[key]
    return None
