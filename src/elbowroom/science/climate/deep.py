"""Extreme rain by a deeper network: what the demo trains."""

from dataclasses import dataclass

import torch
from torch import nn

from elbowroom.science.climate.data import Which
from elbowroom.science.climate.extremes import ExtremeRain
from elbowroom.science.climate.models import UNet
from elbowroom.science.task import Schedule, Task


@dataclass(frozen=True, kw_only=True)
class DeepRain(ExtremeRain):
    """The task of `ExtremeRain` for a U-Net of more and narrower layers.

    Networks for climate at high resolution have dozens of layers, and so what they keep for
    backward is many times what any layer needs at work. A U-Net of two convolutions a level is
    the other case: its widest layer at work takes a good part of the whole.
    """

    data: Which = "shipped"
    widths: tuple[int, ...] = (8, 16, 32, 64)
    convolutions: int = 5
    schedule: Schedule = Schedule(steps=30, batch=8, learning_rate=6e-3, climb=0.15)

    def make_network(self, task: Task) -> nn.Module:
        """Return the network, channels last: convolutions then take inputs as they lie."""
        network: nn.Module = UNet(
            channels=task.features,
            outputs=task.outputs,
            widths=self.widths,
            dropout=self.dropout,
            convolutions=self.convolutions,
        )
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
