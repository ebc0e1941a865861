"""Curves for TensorBoard, read back by TensorBoard's own reader."""

import sys
from pathlib import Path

import pytest

from elbowroom.errors import BackendUnavailable, InvalidArgument
from elbowroom.report import Run, read_run
from elbowroom.report.model import Contender
from elbowroom.report.tensorboard import export

from .runs import record


def test_curves_come_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record(tmp_path / "run", "elbowroom", steps=4)
    run = read_run(tmp_path / "run")
    (folder,) = export(run, tmp_path / "events")
    events = EventAccumulator(str(folder)).Reload()
    losses = [(event.step, event.value) for event in events.Scalars("loss")]
    (contender,) = run.contenders
    assert [step for step, _ in losses] == [1, 2, 3, 4]
    assert [value for _, value in losses] == pytest.approx([s.loss for s in contender.steps])
    assert events.Scalars("memory/kept_bytes")[-1].value == pytest.approx(contender.kept_bytes)
    assert events.Scalars("score/accuracy")[0].value == 0.5


def test_without_the_package_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    record(tmp_path / "run", "plain", steps=1)
    with pytest.raises(BackendUnavailable, match="pip install tensorboard"):
        export(read_run(tmp_path / "run"), tmp_path / "events")


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    run = Run(title="x", contenders=(Contender(name="..", label="x"),))
    with pytest.raises(InvalidArgument, match=r"letters.*got '\.\.'"):
        export(run, tmp_path / "inside" / "events")
    assert not list(tmp_path.iterdir())
