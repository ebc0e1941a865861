"""Cloud at many levels from the temperature of 30: the case of many channels."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from elbowroom.science.climate.data import Months, Which, load_months
from elbowroom.science.climate.segmentation import (
    Crop,
    find_quantile,
    make_segmenter,
    mean_overlap,
    turn,
)
from elbowroom.science.task import Batch, Schedule, Score, Task
from elbowroom.science.training import predict

DEPARTURE_K = 3.0  # the usual departure of a cell from its latitude


@dataclass(frozen=True, kw_only=True)
class Clouds:
    """Where is it cloudiest at every level, given the temperature of 30 levels?

    Cloudiest is what one cell in ten of a level exceeds in the first two months; the third is
    held out. Many channels make this the case of large activations.
    """

    data: Which = "any"
    network: Literal["unet", "deeplab"] = "unet"
    widths: tuple[int, ...] = (32, 48, 64)
    dropout: float = 0.2
    noise: float = 0.15  # on temperatures in training: two months are quickly learnt by heart
    crop: Crop | None = (96, 144)
    first_level: int = 8  # there is hardly any cloud above
    quantile: float = 0.9
    weight: float = 3.5
    schedule: Schedule = Schedule(
        steps=400, batch=2, learning_rate=3e-3, weight_decay=5e-2, climb=0.15
    )

    def make_task(self, folder: Path | None = None) -> Task:
        """Read the months."""
        months = load_months(folder, which=self.data)
        inputs, cloudy = stack_months(months, first_level=self.first_level, quantile=self.quantile)
        last = len(inputs) - 1
        persistence = mean_overlap([(cloudy[last - 1].bool(), cloudy[last].bool())], 1)

        def draw(samples: int, generator: torch.Generator) -> Batch:
            numbers = torch.randint(last, (samples,), generator=generator).tolist()
            pairs = [turn((inputs[n], cloudy[n]), self.crop, generator) for n in numbers]
            # East and west are much alike.
            flips = torch.rand(samples, generator=generator) < 0.5
            pairs = [
                (x.flip(-1), y.flip(-1)) if flip else (x, y)
                for (x, y), flip in zip(pairs, flips, strict=True)
            ]
            x, y = torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])
            return x + self.noise * torch.randn(x.shape, generator=generator), y

        weight = torch.tensor(self.weight)

        def loss(logits: Tensor, truth: Tensor) -> Tensor:
            return functional.binary_cross_entropy_with_logits(
                logits, truth, pos_weight=weight.to(logits.device)
            )

        def score(network: nn.Module) -> Score:
            said = predict(network, inputs[last:], batch=1)[0] > 0
            value = mean_overlap([(said, cloudy[last].bool())], 1)
            return Score(name="IoU", value=value, baselines={"month before": persistence})

        return Task(
            name=f"clouds, {months.source} fields",
            features=inputs.shape[1],
            outputs=cloudy.shape[1],
            draw=draw,
            loss=loss,
            score=score,
        )

    def make_network(self, task: Task) -> nn.Module:
        """Return the network."""
        return make_segmenter(self.network, task, self.widths, self.dropout)


def stack_months(months: Months, *, first_level: int, quantile: float) -> tuple[Tensor, Tensor]:
    """Return temperature, its departure from the latitude's mean and latitude; and what is cloudy.

    Thresholds and scales come from all months but the last.
    """
    known = months.temperature_k[:-1]
    level = (0, 2, 3)
    scaled = (months.temperature_k - known.mean(level, True)) / known.std(level, keepdim=True)
    departure = (months.temperature_k - known.mean((0, 3), True)) / DEPARTURE_K
    sine = torch.sin(torch.deg2rad(months.latitude_deg))[:, None].expand_as(scaled[:, :1])
    cloud = months.cloud[:, first_level:]
    limits = torch.tensor([find_quantile(part, quantile) for part in cloud[:-1].unbind(1)])
    cloudy = (cloud > limits[:, None, None]).float()
    return torch.cat([scaled, departure, sine], dim=1), cloudy
