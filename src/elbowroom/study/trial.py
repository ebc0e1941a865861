"""Trains one cell and says what came of it."""

import math
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import torch
from torch import nn

from elbowroom.keep.activations import Activations
from elbowroom.science.task import Result, Task
from elbowroom.science.training import fit, seeded
from elbowroom.study.cells import Cell
from elbowroom.study.fixed import FixedRoom
from elbowroom.study.networks import find_network
from elbowroom.study.probe import measure_error
from elbowroom.study.treatments import Treatment

Tell = Callable[[int, int], None]  # steps done, steps in all
Room = Activations | FixedRoom

LOOKS = 24  # at the bytes held, spread over the later part
STARTED = 0.25  # share of the steps after which bounds are no longer those of the start
SAMPLED = 16
USUAL = 0.1  # share of the steps whose times do not count: they load and allocate


def run_cell(cell: Cell, *, task: Task, tell: Tell | None = None) -> dict[str, Any]:
    """Train, and return the outcome as plain values; a loss that is not finite is an outcome."""
    recipe = find_network(cell.network, steps=cell.steps)
    with seeded(cell.seed):
        network = recipe.make_network(task)
    room = make_room(cell.treatment, network, seed=cell.seed)
    schedule = recipe.schedule
    if cell.treatment.method == "batch":
        assert cell.treatment.bound is not None
        fewer = max(1, round(schedule.batch * cell.treatment.bound))
        schedule = replace(schedule, batch=fewer)

    def measure() -> float | None:
        """What a fixed treatment does to the gradient; a room has a meter of its own."""
        if not isinstance(room, FixedRoom):
            return None
        return measure_error(
            network,
            task,
            lambda twin: FixedRoom(twin, cell.treatment, seed=cell.seed),
            batch=schedule.batch,
        )

    watch = _Watch(schedule.steps, room, measure, tell)
    result = fit(network, task, schedule, seed=cell.seed, room=room, tell=watch.step)
    outcome = {**_outcome(result), **watch.costs(), "data_crc32": fingerprint(task)}
    if cell.treatment.method == "batch":
        outcome["ratio"] = recipe.schedule.batch / schedule.batch
    return outcome


def fingerprint(task: Task) -> int:
    """Of the data: some is found in parts, and what was learnt from less is not comparable."""
    inputs, targets = task.draw(SAMPLED, torch.Generator().manual_seed(0))
    return zlib.crc32(targets.numpy().tobytes(), zlib.crc32(inputs.numpy().tobytes()))


def make_room(treatment: Treatment, network: nn.Module, *, seed: int) -> Room | None:
    """Return what the forward pass runs in."""
    if treatment.method in ("plain", "batch"):
        return None
    if treatment.method == "fixed":
        return FixedRoom(network, treatment, seed=seed)
    assert treatment.tolerance is not None and treatment.rule is not None
    # Trials are to come out the same on every machine: what is encoded must not depend on its time.
    return Activations(
        network, tolerance=treatment.tolerance, rule=treatment.rule, seed=seed, overhead=None
    )


class _Watch:
    """Looks on while a cell trains."""

    def __init__(
        self,
        steps: int,
        room: Room | None,
        measure: Callable[[], float | None],
        tell: Tell | None,
    ) -> None:
        self._steps = steps
        self._room = room
        self._measure = measure
        self._tell = tell
        self._looks = {
            round(steps * (STARTED + (1 - STARTED) * look / LOOKS)) for look in range(1, LOOKS + 1)
        }
        self._bytes: list[tuple[int, int]] = []
        self._error: float | None = None
        self._times: list[float] = []
        self._last = time.perf_counter()

    def step(self, done: int, loss: float) -> None:
        """Note what a step took and held; what is done here is not counted."""
        self._times.append(time.perf_counter() - self._last)
        if self._room is not None and done in self._looks:
            ledger = self._room.ledger
            self._bytes.append((ledger.saved_bytes, ledger.kept_bytes))
        if done == max(1, self._steps // 2):
            self._error = self._measure()
        if self._tell is not None:
            self._tell(done, self._steps)
        self._last = time.perf_counter()

    def costs(self) -> dict[str, Any]:
        """Bytes, times and the gradient's error."""
        usual = self._times[math.ceil(USUAL * len(self._times)) :] or self._times
        looks = len(self._bytes)
        saved = sum(before for before, _ in self._bytes)
        kept = sum(after for _, after in self._bytes)
        if isinstance(self._room, Activations) and self._room.ledger.readings:
            self._error = median(reading.measured for reading in self._room.ledger.readings)
        return {
            "step_s": median(usual) if usual else None,
            "threads": torch.get_num_threads(),
            "saved_bytes": saved // looks if looks else None,
            "kept_bytes": kept // looks if looks else None,
            "ratio": saved / kept if kept else None,
            "gradient_error": _finite(self._error),
        }


def _outcome(result: Result) -> dict[str, Any]:
    score = result.score
    diverged = result.diverged_at is not None or not math.isfinite(score.value)
    last = result.losses[-max(1, len(result.losses) // 10) :]
    return {
        "state": "diverged" if diverged else "finished",
        "diverged_at": result.diverged_at,
        "metric": score.name,
        "value": _finite(score.value),
        "higher_is_better": score.higher_is_better,
        "baselines": {name: _finite(value) for name, value in score.baselines.items()},
        "loss": _finite(fmean(last)),
        "steps": len(result.losses),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
