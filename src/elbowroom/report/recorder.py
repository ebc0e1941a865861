"""Records a training while it goes on: a context manager around the forward pass."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elbowroom.bench.machine import describe
from elbowroom.errors import InvalidArgument
from elbowroom.keep.activations import Activations
from elbowroom.keep.activations.gauge import Gauge, gauge_of
from elbowroom.keep.activations.ledger import Reading
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
        look_at: Steps whose memory is written moment by moment; the last one counts.
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
            ledger = self._room.ledger
            fields |= {
                "saved_bytes": ledger.saved_bytes,
                "kept_bytes": ledger.kept_bytes,
                "gradient_error": ledger.gradient_error,
                "encode_s": ledger.encode_s,
                "decode_s": ledger.decode_s,
            }
        elif self._watch is not None:
            fields |= {"saved_bytes": self._watch.saved_bytes}
            fields |= {"kept_bytes": self._watch.saved_bytes}
        self.writer.append("step", **fields)
        self._note_memory()
        if self._room is not None and (self.steps in self._look_at or self.steps == self._planned):
            self.note_ledger()
            self._note_timeline(self._room.moments)
        elif self._watch is not None:
            self._note_timeline(self._watch.moments)
        self._watch = None
        self._ended = time.perf_counter()

    def score(self, step: int, name: str, value: float, **fields: Any) -> None:
        """Note a number on held-out data; `baselines` and `higher_is_better` may follow."""
        self.writer.append("score", step=step, name=name, value=value, **fields)
        self._ended = time.perf_counter()

    def pause(self) -> None:
        """What has happened since the last step, such as scoring, is no part of the next."""
        self._ended = time.perf_counter()

    def note_ledger(self, readings: Sequence[Reading] = ()) -> None:
        """Write every row of the ledger, with readings beside the meter's own."""
        if self._room is None:
            return
        ledger = self._room.ledger
        self._readings += readings
        self.writer.append(
            "ledger",
            step=ledger.step,
            rows=[asdict(row) for row in ledger.rows],
            readings=[asdict(r) for r in (*ledger.readings, *self._readings)],
            events=ledger.events,
        )

    def _note_timeline(self, moments: Moments) -> None:
        names = list(dict.fromkeys(name for _, name, _, _ in moments))
        places = {name: place for place, name in enumerate(names)}
        start = self._started
        self.writer.append(
            "timeline",
            step=self.steps,
            forward_s=self._forward - start,
            names=names,
            moments=[
                (round(max(0.0, at - start), 6), places[name], plain, held)
                for at, name, plain, held in moments
            ],
        )

    def _note_memory(self) -> None:
        if self._gauge is None:
            return
        # A budget sets the gauge back at every pass, so that the largest is kept here too.
        self.peak_bytes = max(self.peak_bytes, self._gauge.peak())
        self.writer.append("memory", baseline_bytes=self.baseline_bytes, peak_bytes=self.peak_bytes)

    def end(self, state: str = "finished", note: str = "") -> None:
        """The training is over, or was broken off; its ledger is written once more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        # A pass that was broken off would show half a step.
        if self._room is not None and self.steps and state == "finished":
            self.note_ledger()
        self.writer.end(state, note)
        self.writer.close()


def _find_gauge(model: nn.Module) -> Gauge | None:
    """None where the system does not tell a process its size."""
    try:
        return gauge_of(next((p.device for p in model.parameters()), torch.device("cpu")))
    except InvalidArgument:
        return None
