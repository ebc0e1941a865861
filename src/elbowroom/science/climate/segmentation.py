"""Segmentation of maps: batches of turned globes, a weighted loss, intersection over union."""

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from elbowroom.errors import InvalidArgument
from elbowroom.science.climate.maps import MapSet
from elbowroom.science.climate.models import DeepLab, UNet
from elbowroom.science.task import Batch, Score, Task
from elbowroom.science.training import predict

MEASURED_MAPS = 32  # enough to know the mean of a channel and how common a class is

Crop = tuple[int, int]


def segment(
    train: MapSet,
    held_out: MapSet,
    *,
    name: str,
    weights: Sequence[float],
    crop: Crop | None = None,
    scales: tuple[Tensor, Tensor] | None = None,
    baselines: dict[str, float] | None = None,
) -> Task:
    """Make a task of maps, scored by the mean IoU of all classes but the background.

    `weights` are those of the classes in the loss. `scales` are mean and deviation of the channels,
    measured on training maps if they are not given.
    """
    mean, deviation = scales or measure_channels(train)

    def bring(maps: Tensor) -> Tensor:
        return (maps - mean) / deviation

    def draw(samples: int, generator: torch.Generator) -> Batch:
        numbers = torch.randint(len(train), (samples,), generator=generator).tolist()
        pairs = [turn(train.read(number), crop, generator) for number in numbers]
        return bring(torch.stack([x for x, _ in pairs])), torch.stack([y for _, y in pairs])

    balance = torch.tensor(weights, dtype=torch.float32)

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits, labels, balance.to(logits.device))

    def score(network: nn.Module) -> Score:
        def compare() -> Iterable[tuple[Tensor, Tensor]]:
            for number in range(len(held_out)):
                maps, labels = held_out.read(number)
                said = predict(network, bring(maps)[None], batch=1)[0].argmax(dim=0)
                for kind in range(1, len(held_out.classes)):
                    yield said == kind, labels == kind

        value = mean_overlap(compare(), len(held_out.classes) - 1)
        return Score(name="IoU", value=value, baselines=baselines or {})

    return Task(
        name=name,
        features=len(train.channels),
        outputs=len(train.classes),
        draw=draw,
        loss=loss,
        score=score,
    )


def turn(
    pair: tuple[Tensor, Tensor], crop: Crop | None, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Turn the globe by chance and cut out a part; as longitude is periodic, that is exact."""
    height, width = pair[1].shape[-2:]
    rows, columns = crop or (height, width)
    if rows > height or columns > width:
        raise InvalidArgument(f"a part of {crop} does not fit into maps of {(height, width)}")
    shift = int(torch.randint(width, (1,), generator=generator))
    top = int(torch.randint(height - rows + 1, (1,), generator=generator))
    x, y = (part.roll(shift, -1)[..., top : top + rows, :columns].contiguous() for part in pair)
    return x, y


def mean_overlap(pairs: Iterable[tuple[Tensor, Tensor]], kinds: int) -> float:
    """Return the mean over kinds of intersection over union; the kinds of pairs take turns.

    A kind that is neither said nor true anywhere does not count.
    """
    both, either = [0] * kinds, [0] * kinds
    for number, (said, true) in enumerate(pairs):
        both[number % kinds] += int((said & true).sum())
        either[number % kinds] += int((said | true).sum())
    shares = [one / all_ for one, all_ in zip(both, either, strict=True) if all_]
    return sum(shares) / len(shares) if shares else 0.0


def measure_channels(maps: MapSet) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of every channel over evenly spread maps."""
    means: list[Tensor] = []
    squares: list[Tensor] = []
    for number in range(0, len(maps), max(1, len(maps) // MEASURED_MAPS)):
        values = maps.read(number)[0].double()
        means.append(values.mean(dim=(1, 2)))
        squares.append(values.square().mean(dim=(1, 2)))
    mean = torch.stack(means).mean(dim=0)
    variance = torch.stack(squares).mean(dim=0) - mean.square()
    deviation = variance.clamp(min=0).sqrt()
    deviation[deviation == 0] = 1.0
    return mean.float()[:, None, None], deviation.float()[:, None, None]


def measure_shares(maps: MapSet) -> list[float]:
    """Return how much of evenly spread maps each class covers."""
    counts = torch.zeros(len(maps.classes), dtype=torch.int64)
    for number in range(0, len(maps), max(1, len(maps) // MEASURED_MAPS)):
        counts += maps.read(number)[1].flatten().bincount(minlength=len(counts))
    return (counts / counts.sum()).tolist()


def find_quantile(values: Tensor, share: float) -> float:
    """Return what this share of the values does not exceed."""
    values = values.flatten()
    # torch.quantile takes 2^24 values at most.
    return float(torch.quantile(values[:: -(-len(values) // 2**23)], share))


def make_segmenter(
    kind: Literal["unet", "deeplab"], task: Task, widths: tuple[int, ...], dropout: float
) -> nn.Module:
    """Return an untrained network for the task."""
    if kind == "unet":
        return UNet(channels=task.features, outputs=task.outputs, widths=widths, dropout=dropout)
    if len(widths) != 3:
        raise InvalidArgument(f"a DeepLab has three widths, got {widths}")
    return DeepLab(channels=task.features, outputs=task.outputs, widths=widths, dropout=dropout)
