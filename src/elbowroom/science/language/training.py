"""Next-character prediction, scored by nats per character of the held-out text."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from elbowroom.errors import InvalidArgument
from elbowroom.science.language.data import Text, load_text, read_text
from elbowroom.science.language.models import LSTM, gpt_mini
from elbowroom.science.task import Batch, Schedule, Score, Task
from elbowroom.science.training import predict

SCORED_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True)
class Characters:
    """Predict characters of a text: the file that is named, or Shakespeare."""

    text: Path | None = None
    network: Literal["gpt", "lstm"] = "gpt"
    context: int = 128
    width: int = 192
    layers: int = 4
    dropout: float = 0.0
    symbols: int | None = None  # more than the text has, to widen the last layer
    scored_windows: int | None = None  # of the held-out text; all of it
    schedule: Schedule = Schedule(
        steps=2000, batch=16, learning_rate=2e-3, weight_decay=1e-1, climb=0.1, clip=1.0
    )

    def make_task(self, folder: Path | None = None) -> Task:
        """Read the text."""
        text = read_text(self.text) if self.text else load_text(folder)
        return predict_characters(text, context=self.context, scored_windows=self.scored_windows)

    def make_network(self, task: Task) -> nn.Module:
        """Return the network for the text's symbols."""
        symbols = self.symbols or task.outputs
        if symbols < task.outputs:
            raise InvalidArgument(f"the text has {task.outputs} symbols, more than {symbols}")
        if self.network == "lstm":
            return LSTM(symbols=symbols, width=self.width, layers=self.layers, dropout=self.dropout)
        return gpt_mini(
            symbols=symbols,
            context=self.context,
            width=self.width,
            layers=self.layers,
            dropout=self.dropout,
        )


def predict_characters(text: Text, *, context: int, scored_windows: int | None = None) -> Task:
    """Make a task of a text: windows of the context's length, anywhere in the training part."""
    if min(len(text.train), len(text.held_out)) <= context:
        raise InvalidArgument(
            f"both parts of the text must be longer than the context of {context} characters, got "
            f"{len(text.train)} and {len(text.held_out)}"
        )

    def draw(samples: int, generator: torch.Generator) -> Batch:
        starts = torch.randint(len(text.train) - context, (samples, 1), generator=generator)
        places = starts + torch.arange(context)
        return text.train[places], text.train[places + 1]

    windows = (len(text.held_out) - 1) // context
    windows = min(windows, scored_windows or windows)
    inputs = text.held_out[: windows * context].view(windows, context)
    targets = text.held_out[1 : windows * context + 1].view(windows, context)
    baselines = measure_baselines(text, inputs, targets)

    def score(network: nn.Module) -> Score:
        total = 0.0
        for some, truth in zip(
            inputs.split(SCORED_AT_ONCE), targets.split(SCORED_AT_ONCE), strict=True
        ):
            logits = predict(network, some, batch=SCORED_AT_ONCE)
            total += float(cross_entropy(logits, truth)) * truth.numel()
        return Score(
            name="nats per character",
            value=total / targets.numel(),
            baselines=baselines,
            higher_is_better=False,
        )

    return Task(
        name="next character",
        features=len(text.symbols),
        outputs=len(text.symbols),
        draw=draw,
        loss=cross_entropy,
        score=score,
    )


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all positions."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def measure_baselines(text: Text, inputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Return what guessing costs, and counting how often a symbol follows another."""
    symbols = len(text.symbols)
    pairs = text.train[:-1] * symbols + text.train[1:]
    counts = pairs.bincount(minlength=symbols**2).view(symbols, symbols).double() + 1
    following = -torch.log(counts / counts.sum(dim=1, keepdim=True))
    return {
        "any symbol": math.log(symbols),
        "pairs of symbols": float(following[inputs, targets].mean()),
    }
