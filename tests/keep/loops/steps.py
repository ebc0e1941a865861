"""Steps of loops for tests: small, nonlinear, and of every structure that a state may have."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Pendulum:
    """A state with names."""

    angle: Tensor
    speed: Tensor


class Cell(nn.Module):
    """A recurrent layer of the plainest kind, whose weight is used twice in every step."""

    def __init__(self, width: int = 6, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        values = torch.randn(width, width, generator=generator, dtype=dtype) / width**0.5
        self.weight = nn.Parameter(values)
        self.bias = nn.Parameter(torch.zeros(width, dtype=dtype))

    def forward(self, state: Tensor) -> Tensor:
        """One step."""
        inner = torch.tanh(state @ self.weight + self.bias)
        return state + 0.1 * torch.tanh(inner @ self.weight.T)


def plain(step: Callable[..., Any], state: Any, steps: int) -> Any:
    """The loop that all others are compared with."""
    for _ in range(steps):
        state = step(state)
    return state


def start(width: int = 6, dtype: torch.dtype = torch.float32) -> Tensor:
    """A first state that wants its gradient."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, width, generator=generator, dtype=dtype).requires_grad_()


def wave(speed: Tensor, source: Tensor | None = None) -> Callable[..., Any]:
    """A step of a wave in one dimension with the speed squared as its parameter."""

    def step(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        now, before = state
        curve = torch.roll(now, 1, -1) - 2 * now + torch.roll(now, -1, -1)
        return 2 * now - before + speed * curve, now

    return step


def pulse(points: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """A train of waves, at rest."""
    at = torch.arange(points, dtype=torch.float64)
    train = torch.sin(at / 12) * torch.exp(-(((at - points / 2) / (points / 8)) ** 2))
    return train.to(dtype), train.to(dtype)
