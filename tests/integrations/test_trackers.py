"""Ledgers in trackers, read back from what these have written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import elbowroom as er
from elbowroom.integrations import trackers
from tests.keep.activations.models import make, run


class Noted:
    """A tracker in four lines: nothing but the method is asked of it."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.entries.append((step, dict(values)))


def train(*targets: trackers.Tracker, steps: int = 4) -> er.Activations:
    model, x, y = make("convolutional")
    room = er.Activations(model, meter=1)
    for _ in range(steps):
        run(model, x, y, room)
        trackers.log(room, *targets)
    return room


def test_totals_are_those_of_the_ledger() -> None:
    tracker = Noted()
    room = train(tracker, tracker)
    steps, values = zip(*tracker.entries, strict=True)
    assert steps == (1, 1, 2, 2, 3, 3, 4, 4)
    ledger = room.ledger
    assert values[-1]["activations/saved_bytes"] == ledger.saved_bytes > 0
    assert values[-1]["activations/kept_bytes"] == ledger.kept_bytes > 0
    assert values[-1]["activations/ratio"] == pytest.approx(ledger.ratio)
    assert values[-1]["activations/gradient_error"] == ledger.gradient_error
    assert values[-1]["activations/decode_s"] > 0
    # Only where the meter has measured.
    assert "activations/gradient_error_measured" not in values[0]
    measured = [v["activations/gradient_error_measured"] for v in values[2:] if len(v) == 8]
    assert {reading.measured for reading in ledger.readings} == set(measured)


def test_a_step_can_be_given() -> None:
    tracker = Noted()
    room = train(steps=2)
    trackers.log(room, tracker, step=70)
    assert tracker.entries[0][0] == 70


def test_tensorboard_has_every_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: ./dev test does")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    own = trackers.TensorBoard(tmp_path / "own")
    shared = SummaryWriter(str(tmp_path / "shared"))
    noted = Noted()
    train(own, trackers.TensorBoard(shared), noted)
    own.close()
    shared.close()
    for name in ("own", "shared"):
        events = EventAccumulator(str(tmp_path / name))
        events.Reload()
        for key in ("activations/ratio", "activations/kept_bytes"):
            found = [(event.step, event.value) for event in events.Scalars(key)]
            assert found == [(step, pytest.approx(values[key])) for step, values in noted.entries]


def test_what_is_no_target_of_tensorboard_is_refused() -> None:
    with pytest.raises(er.InvalidArgument, match="takes a folder or a SummaryWriter, got int"):
        trackers.TensorBoard(3)


def test_wandb_has_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb: Any = pytest.importorskip("wandb", reason="wandb is not installed: ./dev test does")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(er.InvalidArgument, match="no run of W&B is active"):
        trackers.WandB()
    active = wandb.init(
        project="elbowroom", dir=str(tmp_path), settings=wandb.Settings(silent=True)
    )
    try:
        noted = Noted()
        train(trackers.WandB(), trackers.WandB(active), noted, steps=3)
        step, values = noted.entries[-1]
        summary = dict(active.summary)
        assert summary["activations/step"] == step
        assert summary["activations/ratio"] == pytest.approx(values["activations/ratio"])
    finally:
        active.finish()
        # Only when its own process has ended is everything on the disk.
        wandb.teardown()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert file.read_bytes().count(b"activations/ratio") >= 3


def test_mlflow_has_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow: Any = pytest.importorskip(
        "mlflow", reason="mlflow wants older packages than the other tests: install it to run this"
    )
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file://{tmp_path}/runs")
    noted = Noted()
    with mlflow.start_run() as active:
        train(trackers.MLflow(), noted, steps=3)
    name = active.info.run_id
    trackers.MLflow(name).log(9, {"activations/ratio": 2.0})
    history = mlflow.MlflowClient().get_metric_history(name, "activations/ratio")
    expected = [(step, values["activations/ratio"]) for step, values in noted.entries]
    assert [(m.step, m.value) for m in history] == [*expected, (9, 2.0)]


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(trackers, "import_module", refuse)
    with pytest.raises(er.BackendUnavailable, match="'pip install mlflow'"):
        trackers.MLflow()
    with pytest.raises(er.BackendUnavailable, match="'pip install wandb'"):
        trackers.WandB()
