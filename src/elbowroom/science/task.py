"""What the applications share: a task, its score, a schedule, and what comes of training."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from elbowroom.errors import InvalidArgument

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Score:
    """A number on held-out data, beside what simple predictors reach on the same."""

    name: str
    value: float
    baselines: Mapping[str, float] = field(default_factory=dict[str, float])
    higher_is_better: bool = True

    def beats_baselines(self) -> bool:
        """Tell whether no simple predictor is as good."""
        sign = 1 if self.higher_is_better else -1
        return all(sign * self.value > sign * value for value in self.baselines.values())

    def __str__(self) -> str:
        simple = ", ".join(f"{name} {value:.4f}" for name, value in self.baselines.items())
        return f"{self.name} {self.value:.4f}" + (f" ({simple})" if simple else "")


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data to learn from, what to minimise, and how a network is judged."""

    name: str
    features: int  # channels, columns or symbols of an input
    outputs: int  # what the network says of every sample, cell or position
    draw: Callable[[int, torch.Generator], Batch]  # a training batch of so many samples
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[nn.Module], Score]  # on data that draw never returns


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and how fast: the rate climbs for a while and falls along a half cosine to zero."""

    steps: int
    batch: int
    learning_rate: float
    weight_decay: float = 1e-2
    climb: float = 0.15  # share of the steps
    clip: float | None = None  # largest norm of the gradient
    optimizer: Literal["adamw", "sgd"] = "adamw"
    score_every: int | None = None  # steps; the end is always scored

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "learning_rate"):
            if not getattr(self, name) > 0:
                raise InvalidArgument(f"{name} must be positive, got {getattr(self, name)!r}")
        if self.score_every is not None and self.score_every < 1:
            raise InvalidArgument(f"score_every must be at least 1, got {self.score_every}")

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        climbing = max(1, round(self.climb * self.steps))
        if step < climbing:
            return self.learning_rate * (step + 1) / climbing
        done = (step - climbing) / max(1, self.steps - climbing)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))

    def make_optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer; only matrices and kernels decay, not biases and scales."""
        parameters = [p for p in network.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        if self.optimizer == "sgd":
            return torch.optim.SGD(groups, self.learning_rate, momentum=0.9, nesterov=True)
        return torch.optim.AdamW(groups, self.learning_rate)


class Recipe(Protocol):
    """A frozen configuration that knows its data, its network and its schedule."""

    @property
    def schedule(self) -> Schedule:
        """Say how long and how fast to train."""
        ...

    def make_task(self, folder: Path | None = None) -> Task:
        """Read the data, from the folder if one is given (elbowroom.science.data)."""
        ...

    def make_network(self, task: Task) -> nn.Module:
        """Return an untrained network, drawn from torch's random numbers."""
        ...


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a training run."""

    task: str
    seed: int
    losses: tuple[float, ...]  # one a step
    scores: tuple[tuple[int, Score], ...]  # steps done, score
    seconds: float  # of the steps alone
    diverged_at: int | None  # the step whose loss was not finite, which ended the run
    network: nn.Module

    @property
    def score(self) -> Score:
        """The last score."""
        return self.scores[-1][1]

    def record(self) -> dict[str, Any]:
        """Return everything but the network as values that JSON has; None is what is not finite."""
        return {
            "task": self.task,
            "seed": self.seed,
            "steps": len(self.losses),
            "seconds": self.seconds,
            "diverged_at": self.diverged_at,
            "score": _record_score(self.score),
            "scores": [{"step": step, **_record_score(score)} for step, score in self.scores],
            "losses": [_finite(loss) for loss in self.losses],
        }


def _record_score(score: Score) -> dict[str, Any]:
    return {**asdict(score), "value": _finite(score.value)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
