"""Logging a room's ledger, step by step, to TensorBoard, Weights & Biases or MLflow.

A tracker is anything with a method `log(step, values)`. Those here import their package when they
are made.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from elbowroom.errors import BackendUnavailable, InvalidArgument
from elbowroom.keep import Activations
from elbowroom.keep.activations import Ledger

PREFIX = "activations/"


class Tracker(Protocol):
    """Takes numbers that belong to a step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record values under their names."""
        ...


def totals(ledger: Ledger) -> dict[str, float]:
    """The ledger's totals of the last pass, under the names that trackers show."""
    values = {
        "saved_bytes": ledger.saved_bytes,
        "kept_bytes": ledger.kept_bytes,
        "peak_bytes": ledger.peak_bytes,
        "ratio": ledger.ratio,
        "gradient_error": ledger.gradient_error,
        "encode_s": ledger.encode_s,
        "decode_s": ledger.decode_s,
    }
    if ledger.readings and ledger.readings[-1].step == ledger.step:
        values["gradient_error_measured"] = ledger.readings[-1].measured
    return {PREFIX + name: float(value) for name, value in values.items()}


def log(room: Activations, *trackers: Tracker, step: int | None = None) -> None:
    """Log the totals of the room's last pass; the step is the room's own count unless given.

    Best called after backward, which is when decoding has happened.
    """
    ledger = room.ledger
    values = totals(ledger)
    for tracker in trackers:
        tracker.log(ledger.step if step is None else step, values)


class TensorBoard:
    """Scalars of TensorBoard, in a folder of their own or through a SummaryWriter."""

    def __init__(self, target: Any) -> None:
        if isinstance(target, str | Path):
            writer = _need("torch.utils.tensorboard", "tensorboard")
            target = writer.SummaryWriter(str(target))
        if not hasattr(target, "add_scalar"):
            raise InvalidArgument(
                f"TensorBoard takes a folder or a SummaryWriter, got {type(target).__name__}: pass "
                "one of these"
            )
        self.writer = target

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add one scalar a value."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still in memory."""
        self.writer.close()


class WandB:
    """A run of Weights & Biases: the given one, or the one that is active."""

    def __init__(self, run: Any = None) -> None:
        self.run = _need("wandb", "wandb").run if run is None else run
        if self.run is None:
            raise InvalidArgument("no run of W&B is active: call wandb.init() first, or pass a run")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log without moving W&B's own step, which belongs to the training loop."""
        self.run.log({**values, PREFIX + "step": step})


class MLflow:
    """A run of MLflow: that of the given identifier, or the one that is active."""

    def __init__(self, run_id: str | None = None) -> None:
        self._mlflow = _need("mlflow", "mlflow")
        self._run_id = run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log all values in one call."""
        self._mlflow.log_metrics(dict(values), step=step, run_id=self._run_id)


def _need(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise BackendUnavailable(
            f"{package} is needed to log there, and cannot be imported ({error}): install it with "
            f"'pip install {package}'"
        ) from error
