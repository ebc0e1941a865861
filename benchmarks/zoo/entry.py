"""One model of the zoo: how it is made, fed and judged."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batch = Callable[[torch.Generator], Any]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that is ready to train."""

    model: nn.Module
    batch: Batch
    """A fresh batch from a generator: data that are made up, but learnable."""

    loss: Callable[[nn.Module, Any], Tensor]
    rate: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the zoo."""

    name: str
    package: str
    make: Callable[[], Subject]
    calls_loss: bool = False
    """Whether the model computes its loss itself, as those of transformers do."""


ENTRIES: dict[str, Entry] = {}


def entry(
    name: str, package: str, *, calls_loss: bool = False
) -> Callable[[Callable[[], Subject]], Callable[[], Subject]]:
    """Put what makes a subject into the zoo, under a name."""

    def put(make: Callable[[], Subject]) -> Callable[[], Subject]:
        ENTRIES[name] = Entry(name=name, package=package, make=make, calls_loss=calls_loss)
        return make

    return put


def tokens(vocabulary: int, batch: int, length: int) -> Callable[[torch.Generator], Tensor]:
    """Rows in which every token follows from the one before, but for some noise."""

    def draw(generator: torch.Generator) -> Tensor:
        start = torch.randint(vocabulary, (batch, 1), generator=generator)
        steps = torch.arange(length)
        rows = (start + steps * 7) % vocabulary
        noise = torch.randint(vocabulary, rows.shape, generator=generator)
        return torch.where(torch.rand(rows.shape, generator=generator) < 0.1, noise, rows)

    return draw


def pictures(
    batch: int, channels: int, size: tuple[int, ...], classes: int
) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Noise over a wave whose direction tells the class."""

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=generator)
        axes = torch.meshgrid(*(torch.linspace(0, 6, n) for n in size), indexing="ij")
        angle = target.view(-1, *[1] * len(size)) * (3.14 / classes)
        wave = (angle.cos() * axes[0] + angle.sin() * axes[-1]).sin()
        x = torch.randn(batch, channels, *size, generator=generator) * 0.5 + wave.unsqueeze(1)
        return x, target

    return draw


def regions(
    batch: int, channels: int, size: tuple[int, ...], classes: int
) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Pictures, and for each pixel a class that follows from the wave under the noise."""

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        phase = 6 * torch.rand(batch, *[1] * len(size), generator=generator)
        axes = torch.meshgrid(*(torch.linspace(0, 9, n) for n in size), indexing="ij")
        wave = (axes[0] + phase).sin() * (axes[-1] - phase).cos()
        x = wave.unsqueeze(1) + 0.3 * torch.randn(batch, channels, *size, generator=generator)
        return x, ((wave + 1) / 2 * classes).long().clamp(0, classes - 1)

    return draw


def load() -> dict[str, Entry]:
    """All entries; the packages behind them are imported when a subject is made."""
    for room in ("generation", "language", "science", "vision"):
        importlib.import_module(f"benchmarks.zoo.{room}")
    return ENTRIES
