"""Exports a run's curves for TensorBoard."""

from pathlib import Path
from typing import Any

from elbowroom.errors import BackendUnavailable
from elbowroom.report.model import Contender, Run
from elbowroom.report.writing import check_name


def export(run: Run, folder: Path) -> list[Path]:
    """Write a folder of events for every contender, and return them."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BackendUnavailable(
            "this needs the package tensorboard: install it with 'pip install tensorboard'"
        ) from None
    folders: list[Path] = []
    for contender in run.contenders:
        check_name(contender.name)
    for contender in run.contenders:
        place = folder / contender.name
        with SummaryWriter(str(place)) as writer:
            _write(writer, contender)
        folders.append(place)
    return folders


def _write(writer: Any, contender: Contender) -> None:
    for step in contender.steps:
        values = {
            "loss": step.loss,
            "time/step_s": step.seconds,
            "time/encode_s": step.encode_s,
            "time/decode_s": step.decode_s,
            "memory/saved_bytes": step.saved_bytes,
            "memory/kept_bytes": step.kept_bytes,
            "gradient_error/predicted": step.gradient_error,
        }
        for name, value in values.items():
            if value is not None:
                writer.add_scalar(name, value, step.step)
    for score in contender.scores:
        if score.value is not None:
            writer.add_scalar(f"score/{score.name}", score.value, score.step)
    for reading in contender.readings:
        writer.add_scalar("gradient_error/measured", reading.measured, reading.step)
