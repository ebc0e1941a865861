"""Extreme rain: which cells exceed a threshold today, from the surface and the days before."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from elbowroom.errors import InvalidArgument
from elbowroom.science.climate.data import Days, Which, load_days
from elbowroom.science.climate.maps import StoredMaps
from elbowroom.science.climate.segmentation import (
    Crop,
    find_quantile,
    make_segmenter,
    mean_overlap,
    segment,
)
from elbowroom.science.task import Schedule, Task


@dataclass(frozen=True, kw_only=True)
class ExtremeRain:
    """Where does it rain extremely today, given the surface's temperature and the days before?

    Extreme is what one cell in twenty exceeds on the training days.
    """

    data: Which = "any"
    network: Literal["unet", "deeplab"] = "unet"
    widths: tuple[int, ...] = (16, 32, 64, 128)
    dropout: float = 0.0
    crop: Crop | None = None
    held_out_days: int = 12
    quantile: float = 0.95
    weight: float = 3.0  # of extreme cells; with less, training settles below the even chance
    schedule: Schedule = Schedule(
        steps=300, batch=2, learning_rate=4e-3, weight_decay=1e-2, climb=0.15
    )

    def make_task(self, folder: Path | None = None) -> Task:
        """Read the days."""
        days = load_days(folder, which=self.data)
        train, held_out, persistence = split_days(
            days, held_out_days=self.held_out_days, quantile=self.quantile
        )
        return segment(
            train,
            held_out,
            name=f"extreme rain, {days.source} fields",
            weights=(1.0, self.weight),
            crop=self.crop,
            baselines={"persistence": persistence},
        )

    def make_network(self, task: Task) -> nn.Module:
        """Return the network."""
        return make_segmenter(self.network, task, self.widths, self.dropout)


def split_days(
    days: Days, *, held_out_days: int, quantile: float
) -> tuple[StoredMaps, StoredMaps, float]:
    """Return maps of the first days and of the last, and the IoU of repeating the day before."""
    count = len(days.surface_k)
    first = count - held_out_days
    if not 2 < first < count:
        raise InvalidArgument(f"of {count} days at most {count - 3} can be held out")
    # Thresholds and scales come from the training days alone.
    limit = find_quantile(days.rain_mm_per_day[:first], quantile)
    extreme = (days.rain_mm_per_day > limit).long()
    wetness = days.rain_mm_per_day.clamp(min=0).log1p()
    sine = torch.sin(torch.deg2rad(days.latitude_deg))[:, None].expand_as(wetness[0])

    def collect(chosen: range) -> StoredMaps:
        now = torch.tensor(chosen)
        fields = [days.surface_k[now], days.surface_k[now - 1], wetness[now - 1], wetness[now - 2]]
        return StoredMaps(
            maps=torch.stack([*fields, sine.expand_as(fields[0])], dim=1),
            labels=extreme[now],
            channels=("TS", "TS a day ago", "rain a day ago", "rain two days ago", "latitude"),
            classes=("usual", "extreme"),
        )

    told = [(extreme[day - 1] == 1, extreme[day] == 1) for day in range(first, count)]
    return collect(range(2, first)), collect(range(first, count)), mean_overlap(told, 1)
