"""A small network that tells wet from dry: rain of a day from its temperature and yesterday's rain.

It is here to have real activations to look at, and learns in seconds what little can be learnt
from six days: a day that is held out is told better than by repeating the day before.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

WET_MM_PER_DAY = 1.0
MM_PER_DAY_PER_M_PER_S = 86_400_000.0
CHANNELS = 16
CROP = (96, 144)  # a quarter of the globe
PEAK_LEARNING_RATE = 2e-2


@dataclass(frozen=True, kw_only=True)
class RainTask:
    """Inputs and truth of every day that has one before it; the last day is held out."""

    inputs: Tensor  # day, channel, latitude, longitude
    wet: Tensor  # day, latitude, longitude
    repeated: float  # accuracy of repeating the day before, on the day held out


def make_task(fields: dict[str, NDArray[np.float32]]) -> RainTask:
    """Build the task from the fields TS and PRECT."""
    surface = torch.from_numpy(fields["TS"])
    rain = torch.from_numpy(fields["PRECT"]) * MM_PER_DAY_PER_M_PER_S
    known = surface[:-1]
    surface = (surface - known.mean()) / known.std()
    wetness = rain.clamp(min=0).log1p()
    latitude = torch.linspace(-math.pi / 2, math.pi / 2, surface.shape[1])
    place = torch.sin(latitude)[:, None].expand_as(surface[1:])
    today, before = surface[1:], surface[:-1]
    wet = rain > WET_MM_PER_DAY
    return RainTask(
        inputs=torch.stack([today, before, today - before, wetness[:-1], place], dim=1),
        wet=wet[1:].float(),
        repeated=float((wet[-1] == wet[-2]).float().mean()),
    )


def make_network(channels: int = CHANNELS) -> nn.Sequential:
    """Three convolutions with batch normalisation and ReLU, and one that sums up."""
    layers: list[nn.Module] = []
    for width in (5, channels, channels):
        layers += [
            nn.Conv2d(width, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.Conv2d(channels, 1, 1))


def train(
    task: RainTask, *, steps: int, seed: int = 0, tell: Callable[[], None] = lambda: None
) -> nn.Sequential:
    """Train on all days but the last; `tell` is called after every step."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make_network()
    optimizer = torch.optim.AdamW(network.parameters(), PEAK_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LEARNING_RATE, total_steps=max(steps, 2)
    )

    def draw(count: int) -> int:
        return int(torch.randint(count, (1,), generator=generator))

    days, height, width = len(task.wet) - 1, *task.wet.shape[1:]
    for _ in range(steps):
        # Longitude is periodic, so turning the globe is an exact augmentation.
        day, turn, top = draw(days), draw(width), draw(height - CROP[0] + 1)
        part = (..., slice(top, top + CROP[0]), slice(CROP[1]))
        x = task.inputs[day : day + 1].roll(turn, -1)[part]
        truth = task.wet[day : day + 1].roll(turn, -1)[part]
        loss = functional.binary_cross_entropy_with_logits(network(x)[:, 0], truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        tell()
    return network


def score(network: nn.Module, task: RainTask) -> float:
    """Return the share of the held-out day's cells that are told right."""
    network.eval()
    with torch.no_grad():
        told = network(task.inputs[-1:])[:, 0] > 0
    return float((told == task.wet[-1:].bool()).float().mean())


def kept_activations(network: nn.Sequential, x: Tensor) -> dict[str, Tensor]:
    """Return what autograd keeps of a training step: outputs of convolutions and of ReLUs.

    Batch normalisation keeps what it gets from a convolution; ReLU keeps what it returns, and the
    next convolution the same.
    """
    network.train()
    kept: dict[str, Tensor] = {}
    with torch.no_grad():
        for number, layer in enumerate(network):
            x = layer(x)
            block = number // 3 + 1
            if isinstance(layer, nn.ReLU):
                kept[f"relu{block}"] = x
            elif isinstance(layer, nn.Conv2d) and number < len(network) - 1:
                kept[f"conv{block}"] = x
    return kept
