"""The gradient's first two moments, as Adam and its kin follow them for every element."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Elements of a parameter that are read, or up to twice as many: more tell no more of their sum.
SOME = 1 << 15


@dataclass(frozen=True, slots=True)
class Moment:
    """Of one parameter, corrected for their start at zero."""

    mean: Tensor
    square: Tensor
    """Of some elements."""

    scale: float
    """How many elements each of them stands for."""

    share: float
    """Of the variance that is left in square - mean²: the mean of few gradients varies too."""

    squares: Tensor
    """Of all elements, as the optimizer has them."""

    correction: float
    """By which those are divided."""

    def usual(self, index: Tensor | None) -> float:
        """Mean square of the elements at these places, or of all of them."""
        some = self.squares if index is None else self.squares[index]
        return float(some.mean(dtype=torch.float32)) / self.correction


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

    def steps(self, parameter: nn.Parameter) -> float:
        """How many the moments have seen; 0 where there are none."""
        return float(self._optimizer.state[parameter]["step"]) if self.has(parameter) else 0.0

    def of(self, parameter: nn.Parameter) -> Moment | None:
        """The moments after the last step; None where there are none."""
        betas, steps = self._betas_of(parameter), self.steps(parameter)
        if betas is None or steps < 1:
            return None
        state = self._optimizer.state[parameter]
        first, second = (1 - beta**steps for beta in betas)
        # Weights (1 - b) b^i, i < steps: the sum of their squares over the square of their sum.
        again = (1 - betas[0]) / (1 + betas[0]) * (1 - betas[0] ** (2 * steps)) / first**2
        mean, square = _flat(state["exp_avg"]), _flat(state["exp_avg_sq"])
        step = _step(square.numel(), parameter)
        return Moment(
            mean=mean[::step].float() / first,
            square=square[::step].float() / second,
            scale=square.numel() / len(square[::step]),
            share=1 - again,
            squares=square,
            correction=second,
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


def _step(count: int, parameter: nn.Parameter) -> int:
    """From one element that is read to the next: one that meets all rows and all columns."""
    step, width = max(1, count // SOME), parameter.shape[-1] if parameter.dim() else 1
    while math.gcd(step, 2 * width) > 1:
        step -= 1
    return step


def _flat(moment: Tensor) -> Tensor:
    moment = moment.detach()
    return (torch.view_as_real(moment) if moment.is_complex() else moment).reshape(-1)
