"""Networks of the activation benchmark, and batches for them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elbowroom.science.climate.models import UNet
from elbowroom.science.language.models import LSTM, gpt_mini
from elbowroom.science.vision import resnet18, resnet50, vit_small

Draw = Callable[[torch.Generator, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network, batches for it, and how large they are."""

    name: str
    make: Callable[[], nn.Module]
    draw: Draw
    batch: int
    """For sizes and times."""

    large_batch: int
    """For the peak: activations are most of the memory."""


def pictures(size: int, classes: int = 1000) -> Draw:
    """Coloured noise around a pattern for each class."""

    def draw(generator: torch.Generator, batch: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(0, classes, (batch,), generator=generator)
        x = torch.randn(batch, 3, size // 4, size // 4, generator=generator)
        x = functional.interpolate(x, size=(size, size), mode="bilinear")
        return x + labels.view(-1, 1, 1, 1) / classes, labels

    return draw


def maps(size: int) -> Draw:
    """Smooth fields and where they are high."""

    def draw(generator: torch.Generator, batch: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 3, size // 8, size // 8, generator=generator)
        x = functional.interpolate(x, size=(size, size), mode="bilinear")
        return x, (x[:, 0] > 1).long()

    return draw


def sentences(length: int, symbols: int) -> Draw:
    """Random walks over symbols."""

    def draw(generator: torch.Generator, batch: int) -> tuple[Tensor, Tensor]:
        steps = torch.randint(0, 7, (batch, length + 1), generator=generator)
        x = steps.cumsum(1) % symbols
        return x[:, :-1], x[:, 1:]

    return draw


CASES = {
    case.name: case
    for case in (
        Case(name="resnet18", make=resnet18, draw=pictures(224), batch=8, large_batch=32),
        Case(name="resnet50", make=resnet50, draw=pictures(224), batch=4, large_batch=32),
        Case(
            name="unet",
            make=lambda: UNet(channels=3, outputs=2),
            draw=maps(256),
            batch=4,
            large_batch=16,
        ),
        Case(
            name="vit_small",
            make=lambda: vit_small(dropout=0.1),
            draw=pictures(224),
            batch=8,
            large_batch=24,
        ),
        Case(name="gpt_mini", make=gpt_mini, draw=sentences(256, 8192), batch=8, large_batch=32),
        Case(
            name="lstm",
            make=lambda: LSTM(symbols=256, width=256),
            draw=sentences(128, 256),
            batch=32,
            large_batch=256,
        ),
    )
}


def loss_of(output: Any, target: Tensor) -> Tensor:
    """Cross entropy over the axis of classes."""
    output = output[0] if isinstance(output, tuple) else output
    if output.dim() == 3 and output.shape[1] == target.shape[1]:
        output = output.transpose(1, 2)
    return functional.cross_entropy(output, target)
