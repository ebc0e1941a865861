"""Signal against background, scored by the area under the ROC curve of held-out events."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from elbowroom.errors import InvalidArgument
from elbowroom.science.particles.cms import load_cms_jets
from elbowroom.science.particles.data import (
    Labelled,
    load_higgs,
    load_higgsml,
    load_jet_images,
    read_higgs_csv,
    read_top_tagging,
)
from elbowroom.science.particles.images import draw_images
from elbowroom.science.particles.models import JetCNN, Perceptron
from elbowroom.science.particles.scores import measure_auc
from elbowroom.science.task import Batch, Schedule, Score, Task
from elbowroom.science.training import predict

SCORED_AT_ONCE = 512


@dataclass(frozen=True, kw_only=True)
class JetImages:
    """Tell jets of top quarks from those of QCD by their images.

    With `top_tagging`, a folder that holds train.h5 and test.h5 of the reference set, the images
    are drawn from its constituents.
    """

    top_tagging: Path | None = None
    jets: int | None = None  # of each file of the reference set; all of them
    pixels: int = 40  # of images that are drawn
    widths: tuple[int, ...] = (16, 32, 64)
    dropout: float = 0.2
    schedule: Schedule = Schedule(
        steps=600, batch=64, learning_rate=3e-3, weight_decay=2e-2, climb=0.15
    )

    def make_task(self, folder: Path | None = None) -> Task:
        """Read or draw the images."""
        if self.top_tagging is None:
            train, held_out = load_jet_images(folder)
        else:
            train, held_out = (
                _draw(read_top_tagging(self.top_tagging / name, jets=self.jets), self.pixels)
                for name in ("train.h5", "test.h5")
            )
        train, held_out = _scale(train, held_out)
        lit = measure_auc((held_out.inputs > 0).sum(dim=(1, 2, 3)), held_out.labels)
        return tell_apart(
            train, held_out, name="top or QCD", baselines={"lit pixels": lit}, mirror=True
        )

    def make_network(self, task: Task) -> nn.Module:
        """Return the convolutional network."""
        return JetCNN(channels=task.features, widths=self.widths, dropout=self.dropout)


@dataclass(frozen=True, kw_only=True)
class Events:
    """Tell signal from background by a row of numbers.

    `data` is cms (b jets, which come with the package), higgs, higgsml, or csv: a file in the
    format of HIGGS, of which the last rows are held out.
    """

    data: Literal["cms", "higgs", "higgsml", "csv"] = "cms"
    csv: Path | None = None
    rows: int | None = None  # of the file; all of them
    held_out_share: float = 0.05  # of the file
    width: int = 128
    layers: int = 3
    dropout: float = 0.1
    schedule: Schedule = Schedule(
        steps=800, batch=128, learning_rate=2e-3, weight_decay=5e-2, climb=0.15
    )

    def __post_init__(self) -> None:
        if not 0 < self.held_out_share < 1:
            raise InvalidArgument(
                f"held_out_share must be above 0 and below 1, got {self.held_out_share!r}"
            )

    def make_task(self, folder: Path | None = None) -> Task:
        """Read the rows."""
        if self.data == "csv":
            if self.csv is None:
                raise InvalidArgument("a file in the format of HIGGS must be given as csv")
            table = read_higgs_csv(self.csv, rows=self.rows)
            cut = len(table) - max(1, round(self.held_out_share * len(table)))
            train = table.take(torch.arange(cut))
            held_out = table.take(torch.arange(cut, len(table)))
        else:
            loaders = {"cms": load_cms_jets, "higgs": load_higgs, "higgsml": load_higgsml}
            train, held_out = loaders[self.data](folder)
        train, held_out = _standardise(train, held_out)
        baselines = {"best column": _try_columns(train, held_out)}
        names = {"cms": "b jet or not"}
        name = names.get(self.data, "Higgs or background")
        return tell_apart(train, held_out, name=name, baselines=baselines, mirror=False)

    def make_network(self, task: Task) -> nn.Module:
        """Return the perceptron."""
        return Perceptron(
            features=task.features, width=self.width, layers=self.layers, dropout=self.dropout
        )


def tell_apart(
    train: Labelled, held_out: Labelled, *, name: str, baselines: dict[str, float], mirror: bool
) -> Task:
    """Make a task of labelled events; half of the images drawn are mirrored top to bottom."""

    def draw(samples: int, generator: torch.Generator) -> Batch:
        numbers = torch.randint(len(train), (samples,), generator=generator)
        inputs, labels = train.inputs[numbers], train.labels[numbers]
        if mirror:
            flip = torch.rand(samples, 1, 1, 1, generator=generator) < 0.5
            inputs = torch.where(flip, inputs.flip(-2), inputs)
        return inputs, labels

    def score(network: nn.Module) -> Score:
        said = predict(network, held_out.inputs, batch=SCORED_AT_ONCE)
        return Score(name="AUC", value=measure_auc(said, held_out.labels), baselines=baselines)

    return Task(
        name=name,
        features=train.inputs.shape[1],
        outputs=1,
        draw=draw,
        loss=functional.binary_cross_entropy_with_logits,
        score=score,
    )


def _draw(jets: Labelled, pixels: int) -> Labelled:
    parts = [draw_images(part, pixels=pixels) for part in jets.inputs.split(10_000)]
    return Labelled(inputs=torch.cat(parts), labels=jets.labels)


def _scale(train: Labelled, held_out: Labelled) -> tuple[Labelled, Labelled]:
    """Compress the range of brightness; what is dark stays zero."""
    lit = train.inputs[train.inputs > 0]
    if not len(lit):
        raise InvalidArgument("all images for training are empty: jets with momentum are needed")
    mean = lit.mean()

    def dim(jets: Labelled) -> Labelled:
        return Labelled(inputs=torch.log1p(jets.inputs / mean), labels=jets.labels)

    return dim(train), dim(held_out)


def _standardise(train: Labelled, held_out: Labelled) -> tuple[Labelled, Labelled]:
    """Bring columns to mean 0 and deviation 1 on the training rows; what is undefined becomes 0."""
    mean = train.inputs.nanmean(dim=0)
    spread = (train.inputs - mean).square().nanmean(dim=0).sqrt().clamp(min=1e-6)

    def bring(events: Labelled) -> Labelled:
        inputs = ((events.inputs - mean) / spread).nan_to_num(0.0).clamp(-10, 10)
        return Labelled(inputs=inputs, labels=events.labels)

    return bring(train), bring(held_out)


def _try_columns(train: Labelled, held_out: Labelled) -> float:
    """Return the AUC of the single column that told most on the training rows."""
    found: list[tuple[float, Tensor]] = []
    for known, new in zip(train.inputs.T, held_out.inputs.T, strict=True):
        auc = measure_auc(known, train.labels)
        found.append((max(auc, 1 - auc), new if auc >= 0.5 else -new))
    return measure_auc(max(found, key=lambda pair: pair[0])[1], held_out.labels)
