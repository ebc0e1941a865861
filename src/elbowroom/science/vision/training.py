"""Image classification: what is drawn, how it is varied, and the share of images told right."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from elbowroom.errors import InvalidArgument
from elbowroom.science.task import Batch, Schedule, Score, Task
from elbowroom.science.training import predict
from elbowroom.science.vision.data import ImageSet, load_cifar10, load_digits, open_folder
from elbowroom.science.vision.resnet import resnet18, resnet50, resnet_small
from elbowroom.science.vision.vit import vit_cifar, vit_small

MEASURED_IMAGES = 1000  # enough to know the mean of a channel
READ_AT_ONCE = 250


@dataclass(frozen=True, kw_only=True)
class Images:
    """Classify images.

    `data` is cifar10, digits or folder; a folder has the subfolders train and val, and in each a
    subfolder for every class. `widths` and `blocks` shape the network resnet, `width`, `layers`
    and `patch` the network vit.
    """

    data: Literal["cifar10", "digits", "folder"] = "cifar10"
    network: Literal["resnet", "resnet18", "resnet50", "vit", "vit_small"] = "resnet"
    pixels: int = 32
    widths: tuple[int, ...] = (16, 32, 64)
    blocks: int = 3
    width: int = 128
    layers: int = 6
    patch: int = 4
    dropout: float = 0.0
    schedule: Schedule = Schedule(
        steps=2000, batch=64, learning_rate=3e-3, weight_decay=5e-2, climb=0.15
    )

    def make_task(self, folder: Path | None = None) -> Task:
        """Read the images."""
        if self.data == "folder":
            if folder is None:
                raise InvalidArgument("a folder with the subfolders train and val must be given")
            train = open_folder(folder / "train", pixels=self.pixels)
            if len(train.classes) < 2:
                raise InvalidArgument(
                    f"{folder / 'train'} must have at least two classes, each a subfolder, got "
                    f"{len(train.classes)}"
                )
            held_out = open_folder(folder / "val", pixels=self.pixels, classes=train.classes)
            return classify(train, held_out, margin=self.pixels // 8, mirror=True)
        if self.data == "digits":
            return classify(*load_digits(folder), margin=1, mirror=False)
        return classify(*load_cifar10(folder), margin=4, mirror=True)

    def make_network(self, task: Task) -> nn.Module:
        """Return the network for as many classes as there are."""
        classes, channels = task.outputs, task.features
        if self.network == "resnet":
            return resnet_small(
                widths=self.widths, blocks=self.blocks, classes=classes, channels=channels
            )
        if self.network == "resnet18":
            return resnet18(classes=classes, channels=channels)
        if self.network == "resnet50":
            return resnet50(classes=classes, channels=channels)
        if self.network == "vit_small":
            return vit_small(classes=classes, pixels=self.pixels, dropout=self.dropout)
        return vit_cifar(
            classes=classes,
            pixels=self.pixels,
            patch=self.patch,
            width=self.width,
            layers=self.layers,
            channels=channels,
            dropout=self.dropout,
        )


def classify(train: ImageSet, held_out: ImageSet, *, margin: int, mirror: bool) -> Task:
    """Make a task of images; in training they move by up to the margin, and half are mirrored."""
    mean, deviation = measure(train)

    def normalise(pixels: Tensor) -> Tensor:
        return (pixels.float() - mean) / deviation

    def draw(samples: int, generator: torch.Generator) -> Batch:
        pixels, labels = train.read(torch.randint(len(train), (samples,), generator=generator))
        return vary(normalise(pixels), generator, margin=margin, mirror=mirror), labels

    def score(network: nn.Module) -> Score:
        right = 0
        seen = torch.zeros(len(train.classes), dtype=torch.int64)
        for numbers in torch.arange(len(held_out)).split(READ_AT_ONCE):
            pixels, labels = held_out.read(numbers)
            said = predict(network, normalise(pixels), batch=READ_AT_ONCE).argmax(dim=1)
            right += int((said == labels).sum())
            seen += labels.bincount(minlength=len(seen))
        return Score(
            name="accuracy",
            value=right / len(held_out),
            baselines={"commonest class": int(seen.max()) / len(held_out)},
        )

    return Task(
        name="image classification",
        features=len(mean),
        outputs=len(train.classes),
        draw=draw,
        loss=functional.cross_entropy,
        score=score,
    )


def measure(images: ImageSet) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of every channel over evenly spread training images."""
    numbers = torch.arange(0, len(images), max(1, len(images) // MEASURED_IMAGES))
    means: list[Tensor] = []
    squares: list[Tensor] = []
    for some in numbers.split(READ_AT_ONCE):
        pixels = images.read(some)[0].double()
        means.append(pixels.mean(dim=(2, 3)))
        squares.append(pixels.square().mean(dim=(2, 3)))
    mean, square = torch.cat(means).mean(dim=0), torch.cat(squares).mean(dim=0)
    deviation = (square - mean.square()).clamp(min=1.0).sqrt()
    return mean.float()[:, None, None], deviation.float()[:, None, None]


def vary(x: Tensor, generator: torch.Generator, *, margin: int, mirror: bool) -> Tensor:
    """Move every image by up to the margin either way, and mirror every other one by chance."""
    samples, _, height, width = x.shape
    padded = functional.pad(x, (margin,) * 4)
    moves = torch.randint(2 * margin + 1, (samples, 2), generator=generator)
    rows = moves[:, :1] + torch.arange(height)
    columns = moves[:, 1:] + torch.arange(width)
    if mirror:
        flip = torch.rand(samples, 1, generator=generator) < 0.5
        columns = torch.where(flip, columns.flip(1), columns)
    which = torch.arange(samples)[:, None, None]
    cut = padded[which, :, rows[:, :, None], columns[:, None, :]]
    return cut.permute(0, 3, 1, 2).contiguous()
