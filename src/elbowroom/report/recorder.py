"""Records a training while it goes on: a context manager around the forward pass."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elbowroom.bench.machine import describe
from elbowroom.errors import InvalidArgument
from elbowroom.keep.activations import Activations
from elbowroom.keep.activations.gauge import Gauge, gauge_of
from elbowroom.keep.activations.ledger import Ledger, Reading
from elbowroom.report.watch import Watch
from elbowroom.report.writing import Writer

Moments = list[tuple[float, str, int, int]] | tuple[tuple[float, str, int, int], ...]


class Recorder:
    """Writes what a training does into the folder of a run.

    Takes the place of a room around the forward pass, or stands where there is none:

        recorder = Recorder("run", model, optimizer, room=room)
        for x, target in loader:
            with recorder:
                loss = loss_fn(model(x), target)
            loss.backward(); optimizer.step(); optimizer.zero_grad()
            recorder.step(loss)
        recorder.end()

    Then `elbowroom report run` shows it, also before it has ended.

    Args:
        folder: Of the run; several contenders may write into one.
        model: Whose memory is watched.
        optimizer: Tells when backward is over.
        room: The `Activations` to record; without one, plain autograd is watched.
        name: Of this contender, and its file. "plain" comes first in reports.
        label: For people.
        planned_steps: How many there will be, if that is known.
        facts: Anything else worth telling, such as seed and batch.
        look_at: Steps whose memory is written moment by moment; the last one counts. With a room,
            the last step of the training is among them.
    """

    def __init__(
        self,
        folder: Path | str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        room: Activations | None = None,
        name: str = "training",
        label: str | None = None,
        planned_steps: int | None = None,
        facts: Mapping[str, object] | None = None,
        look_at: tuple[int, ...] = (2, 6, 16, 40, 100, 300, 1000),
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidArgument(
                f"model must be a torch.nn.Module, got {type(model).__name__}: pass the one that "
                "trains"
            )
        self._model, self._room, self._look_at = model, room, look_at
        self._planned = planned_steps
        self.writer = Writer(
            folder,
            name,
            "contender",
            {
                "label": label or name,
                "planned_steps": planned_steps,
                "tolerance": None if room is None else room.tolerance,
                "facts": {key: str(value) for key, value in (facts or {}).items()},
                "machine": {key: str(value) for key, value in describe().items()},
            },
        )
        self._gauge = _find_gauge(model)
        self.baseline_bytes = self.peak_bytes = 0
        if self._gauge is not None:
            self._gauge.reset()
            self.baseline_bytes = self.peak_bytes = self._gauge.now()
        self.steps = 0
        self._readings: list[Reading] = []
        # Of the last step that was noted: passes that belong to none may follow it.
        self._ledger = Ledger()
        self._last: _Step | None = None
        self._watch: Watch | None = None
        self._inside: AbstractContextManager[Any] = nullcontext()
        self._ended = time.perf_counter()
        self._started = self._forward = self._backward = self._stepped = self._ended
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def __enter__(self) -> "Recorder":
        self._inside = self._room or nullcontext()
        if self._room is None and self.steps + 1 in self._look_at:
            self._inside = self._watch = Watch(self._model)
        self._started = time.perf_counter()
        self._inside.__enter__()
        return self

    def __exit__(self, *ending: Any) -> None:
        self._inside.__exit__(*ending)
        self._forward = self._backward = self._stepped = time.perf_counter()

    def _before_step(self, *_: Any) -> None:
        self._backward = time.perf_counter()

    def _after_step(self, *_: Any) -> None:
        self._stepped = time.perf_counter()

    def step(self, loss: float | Tensor) -> None:
        """Note a step that is over."""
        now = time.perf_counter()
        self.steps += 1
        fields: dict[str, Any] = {
            "step": self.steps,
            "loss": float(loss.detach() if isinstance(loss, Tensor) else loss),
            "seconds": now - self._ended,
            "forward_s": self._forward - self._started,
            "backward_s": self._backward - self._forward,
            "optimizer_s": self._stepped - self._backward,
        }
        if self._room is not None:
            self._ledger = ledger = self._room.ledger
            fields |= {
                "saved_bytes": ledger.saved_bytes,
                "kept_bytes": ledger.kept_bytes,
                "gradient_error": ledger.gradient_error,
                "encode_s": ledger.encode_s,
                "decode_s": ledger.decode_s,
            }
            self._last = self._look_back(self._room.moments)
        elif self._watch is not None:
            fields |= {"saved_bytes": self._watch.saved_bytes}
            fields |= {"kept_bytes": self._watch.saved_bytes}
            self._last = self._look_back(self._watch.moments)
        self.writer.append("step", **fields)
        self._note_memory()
        if self.steps in self._look_at or self.steps == self._planned:
            self.note_ledger()
            self._note_timeline()
        self._watch = None
        self._ended = time.perf_counter()

    def score(self, step: int, name: str, value: float, **fields: Any) -> None:
        """Note a number on held-out data; `baselines` and `higher_is_better` may follow."""
        self.writer.append("score", step=step, name=name, value=value, **fields)
        self._ended = time.perf_counter()

    def pause(self) -> None:
        """What has happened since the last step, such as scoring, is no part of the next."""
        self._ended = time.perf_counter()

    def tell(self, doing: str) -> None:
        """Say in a few words what follows the last step, for those who look on."""
        self.writer.append("doing", what=doing)

    def note_ledger(self, readings: Sequence[Reading] = ()) -> None:
        """Write every row of the last step's ledger, with readings beside the meter's own."""
        if self._room is None:
            return
        self._readings += readings
        self.writer.append(
            "ledger",
            step=self.steps,
            rows=[asdict(row) for row in self._ledger.rows],
            readings=[asdict(r) for r in (*self._ledger.readings, *self._readings)],
            events=self._room.ledger.events,
        )

    def _look_back(self, moments: Moments) -> "_Step":
        start = self._started
        return _Step(
            step=self.steps,
            forward_s=self._forward - start,
            moments=[
                (max(0.0, at - start), name, plain, held) for at, name, plain, held in moments
            ],
        )

    def _note_timeline(self) -> None:
        if self._last is None:
            return
        last, self._last = self._last, None
        names = list(dict.fromkeys(name for _, name, _, _ in last.moments))
        places = {name: place for place, name in enumerate(names)}
        self.writer.append(
            "timeline",
            step=last.step,
            forward_s=last.forward_s,
            names=names,
            moments=[
                (round(at, 6), places[name], plain, held) for at, name, plain, held in last.moments
            ],
        )

    def _note_memory(self) -> None:
        if self._gauge is None:
            return
        # A budget sets the gauge back at every pass, so that the largest is kept here too.
        self.peak_bytes = max(self.peak_bytes, self._gauge.peak())
        self.writer.append("memory", baseline_bytes=self.baseline_bytes, peak_bytes=self.peak_bytes)

    def end(self, state: str = "finished", note: str = "") -> None:
        """The training is over, or was broken off; its last step is written once more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self.steps:
            self.note_ledger()
            self._note_timeline()
        self.writer.end(state, note)
        self.writer.close()


@dataclass(frozen=True, kw_only=True)
class _Step:
    """When the bytes of a step came and went, in seconds since it began."""

    step: int
    forward_s: float
    moments: Moments


def _find_gauge(model: nn.Module) -> Gauge | None:
    """None where the system does not tell a process its size."""
    try:
        return gauge_of(next((p.device for p in model.parameters()), torch.device("cpu")))
    except InvalidArgument:
        return None
