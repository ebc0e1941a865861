"""Layers and functions behind a parameter, with a loss that no layer keeps constant."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.keep.activations.checking import Forward

Case = tuple[Callable[[], Any], Forward]


class Framed(nn.Module):
    """A layer behind a parameter that is added: what arrives there is looked at too."""

    def __init__(self, layer: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.front = nn.Parameter(torch.randn(1, *shape[1:]))
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.front)


def framed_loss(model: Any, call: Callable[[Tensor], Tensor] = lambda y: y) -> tuple[Tensor, ...]:
    """A random projection: nothing that a layer keeps constant can cancel."""
    y = call(model(torch.randn(model.shape)))
    return ((y * torch.randn_like(y)).sum(),)


def of(make: Callable[[], Any], *shape: int) -> Case:
    """A layer by itself."""
    return lambda: Framed(make(), shape), framed_loss


def function(call: Callable[[Tensor], Tensor], *shape: int) -> Case:
    """A function behind a linear layer."""
    width = shape[-1]
    return lambda: Framed(nn.Linear(width, width), shape), lambda model: framed_loss(model, call)
