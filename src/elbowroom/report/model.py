"""What was measured: the record of a run, between those who measure and those who show.

Everything is plain values, so that a run is JSON as it stands. Numbers that were not finite, and
those that were not measured, are None; in rows of the ledger, which are the room's own, NaN.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from elbowroom.keep.activations.ledger import Reading, Row

VERSION = 1

State = Literal["running", "finished", "stopped", "interrupted", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of training."""

    step: int
    loss: float | None
    seconds: float
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    encode_s: float = 0.0
    """Part of forward_s."""

    decode_s: float = 0.0
    """Part of backward_s."""

    saved_bytes: int | None = None
    kept_bytes: int | None = None
    gradient_error: float | None = None

    @property
    def other_s(self) -> float:
        """Drawing the batch, and whatever else lies between."""
        return max(0.0, self.seconds - self.forward_s - self.backward_s - self.optimizer_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """A number on held-out data after so many steps, beside those of simple predictors."""

    step: int
    name: str
    value: float | None
    higher_is_better: bool = True
    baselines: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """Bytes that came or went at one place during the step."""

    at_s: float
    layer: str
    plain_bytes: int
    held_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """The bytes saved for backward over one step, as they came and went."""

    step: int
    forward_s: float
    """When backward began."""

    moments: tuple[Moment, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """A process before its first step, and at most so far."""

    baseline_bytes: int
    peak_bytes: int

    @property
    def above_bytes(self) -> int:
        """What training took."""
        return max(0, self.peak_bytes - self.baseline_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One training: how it went and what it took."""

    name: str
    label: str
    planned_steps: int | None = None
    tolerance: float | None = None
    """Share of the gradient's variance that errors may add; None without a room."""

    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    machine: Mapping[str, str] = field(default_factory=dict[str, str])
    steps: tuple[Step, ...] = ()
    scores: tuple[Score, ...] = ()
    memory: Memory | None = None
    rows: tuple[Row, ...] = ()
    readings: tuple[Reading, ...] = ()
    events: tuple[str, ...] = ()
    timeline: Timeline | None = None
    doing: str = ""
    """What it does after its last step, while it runs."""

    state: State = "running"
    note: str = ""

    @property
    def saved_bytes(self) -> int | None:
        """Most that plain autograd would hold for backward, in the last step that tells."""
        return next((s.saved_bytes for s in reversed(self.steps) if s.saved_bytes), None)

    @property
    def kept_bytes(self) -> int | None:
        """What is held instead."""
        return next((s.kept_bytes for s in reversed(self.steps) if s.kept_bytes), None)

    @property
    def gradient_error(self) -> float | None:
        """Predicted share of the gradient's variance: where it was measured, of the same batches.

        Otherwise of the last step that tells.
        """
        if self.readings:
            return self.readings[-1].predicted
        known = (s.gradient_error for s in reversed(self.steps))
        return next((error for error in known if error is not None), None)

    @property
    def measured_error(self) -> float | None:
        """The same, measured: by the last reading."""
        return self.readings[-1].measured if self.readings else None

    @property
    def step_s(self) -> float | None:
        """The median step, the first one apart."""
        seconds = sorted(step.seconds for step in self.steps[1:] or self.steps)
        return seconds[len(seconds) // 2] if seconds else None

    @property
    def score(self) -> Score | None:
        """The last one."""
        return self.scores[-1] if self.scores else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """A training under a real limit of memory: did it finish?"""

    label: str
    limit_bytes: int
    finished: bool
    said: str
    """How it ended, in a sentence."""

    steps: int = 0
    peak_bytes: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Everything that a report shows."""

    version: int = VERSION
    title: str
    command: str = ""
    about: str = ""
    machine: Mapping[str, str] = field(default_factory=dict[str, str])
    contenders: tuple[Contender, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    state: State = "running"
    note: str = ""

    def find(self, name: str) -> Contender | None:
        """The contender of that name."""
        return next((c for c in self.contenders if c.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """All of it, as values that JSON has."""
        return clean(asdict(self))


def clean(value: Any) -> Any:
    """As JSON has it: None for what is not finite, lists for tuples."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value
