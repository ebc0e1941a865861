"""How much of the noise at each node reaches each parameter, beside that parameter's variance."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from elbowroom.keep.activations.journey import Journey, Mode, Onward
from elbowroom.keep.activations.noise import Noise
from elbowroom.keep.activations.sensitivity import Effect

Row = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Costs:
    """Shares of the sampling variance that a unit of squared bound adds."""

    overall: float
    """Of the whole gradient."""

    mean: float
    """Of each layer, averaged over layers."""

    of_part: float
    """Of the whole gradient, where only the meter's part of the batch is run."""

    each: Row
    """Of each parameter, in the order of `Variances.leaves`."""

    touched: Row
    """Squared error of each parameter's gradient, also where no variance is known."""


class Variances:
    """Sampling variance of the parameters, and how much of it noise at each node adds."""

    def __init__(
        self,
        journeys: dict[int, Journey],
        parameters: Iterable[nn.Parameter],
        noise: Noise,
        cancelled: Collection[int] = (),
    ) -> None:
        """Where the terms of a gradient cancel, those of its errors do."""
        known = [parameter for parameter in parameters if id(parameter) not in cancelled]
        self.leaves = [id(parameter) for parameter in known]
        """Their ids; columns of every row."""

        self._place = {leaf: place for place, leaf in enumerate(self.leaves)}
        found = np.array([noise.variance(parameter) or 0.0 for parameter in known], np.float64)
        self._variance = np.where(found > 0, found, np.inf)
        is_known = found > 0
        self._is_layer = is_known & np.array([p.dim() > 1 for p in known], bool)
        self.total = float(found[is_known].sum())
        # Of a unit of energy at a node: what reaches each parameter, and the same for a part of
        # the batch. What is behind a node was made before it, and has a lower number.
        self._reach: dict[tuple[int, Mode], tuple[Row, Row]] = {}
        for number in sorted(journeys):
            for mode, onward in journeys[number].items():
                self._reach[number, mode] = self._sum(onward)

    def _sum(self, onward: Onward) -> tuple[Row, Row]:
        whole = np.zeros(len(self.leaves))
        is_apart = bool(onward.of_part)
        part = np.zeros(len(self.leaves)) if is_apart else whole
        for leaf, value in onward.leaves.items():
            place = self._place.get(leaf)
            if place is not None:
                whole[place] += value
                if is_apart:
                    part[place] += onward.of_part.get(leaf, value)
        for (number, mode), value in onward.nodes.items():
            reach = self._reach.get((number, mode)) or self._reach.get((number, Mode.WHITE))
            if reach is None:
                continue
            if not is_apart and reach[0] is not reach[1]:
                is_apart, part = True, whole.copy()
            whole += _scaled(reach[0], value)
            if is_apart:
                part += _scaled(reach[1], value)
        return whole, part

    def costs(self, effect: Effect) -> Costs:
        """Of a unit of error variance."""
        whole, part = self._sum(Onward(effect.local, effect.injected))
        is_known, is_layer = np.isfinite(self._variance), self._is_layer
        each = np.where(is_known, whole, 0.0) / self._variance
        return Costs(
            overall=float(whole[is_known].sum()) / self.total,
            mean=float(each[is_layer].sum()) / max(1, int(is_layer.sum())),
            of_part=float(part[is_known].sum()) / self.total,
            each=each,
            touched=whole,
        )


def _scaled(row: Row, value: float) -> Row:
    """Nothing stays nothing, however large an effect is that nobody could bound."""
    if value == 0:
        return np.zeros_like(row)
    with np.errstate(invalid="ignore"):
        return np.where(row == 0, 0.0, value * row)
