"""The gradient's first two moments, as Adam and its kin follow them for every element."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Moment:
    """Of one parameter, corrected for their start at zero."""

    mean: Tensor
    square: Tensor

    share: float
    """Of the variance that is left in square - mean²: the mean of few gradients varies too."""


class Moments:
    """What an optimizer's state tells of gradients, where it has moments at all."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._betas: dict[int, tuple[float, float]] = {}

    def has(self, parameter: nn.Parameter) -> bool:
        """Whether the optimizer follows both moments of this parameter."""
        state = self._optimizer.state.get(parameter)
        return (
            state is not None
            and all(type(state.get(name)) is Tensor for name in ("exp_avg", "exp_avg_sq"))
            and "step" in state
        )

    def of(self, parameter: nn.Parameter) -> Moment | None:
        """The moments after the last step; None where there are none."""
        betas = self._betas_of(parameter)
        if betas is None or not self.has(parameter):
            return None
        state = self._optimizer.state[parameter]
        steps = float(state["step"])
        if steps < 1:
            return None
        first, second = (1 - beta**steps for beta in betas)
        # Weights (1 - b) b^i, i < steps: the sum of their squares over the square of their sum.
        again = (1 - betas[0]) / (1 + betas[0]) * (1 - betas[0] ** (2 * steps)) / first**2
        return Moment(
            _real(state["exp_avg"]) / first, _real(state["exp_avg_sq"]) / second, 1 - again
        )

    def _betas_of(self, parameter: nn.Parameter) -> tuple[float, float] | None:
        known = self._betas.get(id(parameter))
        if known is None:
            self._betas = {
                id(p): (float(group["betas"][0]), float(group["betas"][1]))
                for group in self._optimizer.param_groups
                if "betas" in group
                for p in group["params"]
            }
            known = self._betas.get(id(parameter))
        return known


def _real(moment: Tensor) -> Tensor:
    moment = moment.detach()
    return (torch.view_as_real(moment) if moment.is_complex() else moment).reshape(-1).float()
