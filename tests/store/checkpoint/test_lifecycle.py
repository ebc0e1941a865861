"""From the first checkpoint to the last: what is closed, forked, broken or begun anew."""

import logging
import math
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from elbowroom.errors import BudgetUnreachable, InvalidArgument
from elbowroom.store.checkpoint import Checkpointer, CheckpointWarning, Store, ending, store

from .holders import Holder
from .runs import start


def steps_in(where: Path) -> list[int]:
    return [name.step for name in Store.open(where).names()]


class Fragile(Holder):
    """An object whose state cannot be told for a while."""

    is_broken = False

    def state_dict(self) -> Any:
        if self.is_broken:
            raise KeyError("no state now")
        return super().state_dict()


def test_what_is_closed_writes_no_more(tmp_path: Path) -> None:
    run = start()
    checkpointer = run.checkpointer(tmp_path, every=1)
    checkpointer.step()
    checkpointer.close()
    # It holds no lock any more, and another run may write.
    for use in (checkpointer.step, checkpointer.save, checkpointer.wait, checkpointer.restore):
        with pytest.raises(InvalidArgument, match="is closed: make another"):
            use()
    checkpointer.close()
    assert steps_in(tmp_path) == [1]


def test_a_state_that_cannot_be_told_at_the_end_keeps_nobody_out(tmp_path: Path) -> None:
    fragile = Fragile({"x": 1})
    checkpointer = Checkpointer(tmp_path, x=fragile, every=100)
    checkpointer.step()
    fragile.is_broken = True
    with pytest.raises(KeyError, match="no state now"):
        checkpointer.close()
    Checkpointer(tmp_path, x=Holder(None)).close()


def test_a_step_that_could_not_be_saved_is_saved_at_the_end(tmp_path: Path) -> None:
    fragile = Fragile({"x": 1})
    with Checkpointer(tmp_path, x=fragile, every=1) as checkpointer:
        fragile.is_broken = True
        with pytest.raises(KeyError):
            checkpointer.step()
        fragile.is_broken = False
    assert steps_in(tmp_path) == [1]


def test_a_forked_process_that_ends_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of loaders are such, and end while checkpoints are being written."""
    gate, begun = threading.Event(), threading.Event()
    real = store.Store.commit

    def commit_late(*given: Any) -> Any:
        begun.set()
        assert gate.wait(60)
        return real(*given)

    monkeypatch.setattr(store.Store, "commit", commit_late)
    holder = Holder({"x": torch.randn(9000)})
    checkpointer = Checkpointer(tmp_path / "near", x=holder, every=1, far=tmp_path / "far")
    checkpointer.step()
    assert begun.wait(60)
    (pack,) = (tmp_path / "near" / "packs").iterdir()  # no manifest names it yet

    def use() -> None:
        for call in (checkpointer.step, checkpointer.wait):
            with pytest.raises(InvalidArgument, match="belongs to process"):
                call()
        checkpointer.close()

    for work in (use, lambda: None):
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join(60)
        assert process.exitcode == 0
    assert pack.exists()
    gate.set()
    checkpointer.close()
    for place in ("near", "far"):
        found = Store.open(tmp_path / place)
        assert [found.verify(name) for name in found.names()] == [[]]


def test_hooks_go_when_it_could_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = start()
    with pytest.raises(InvalidArgument, match="is a file"):
        run.checkpointer(tmp_path / "file", lazy=True)
    assert len(run.optimizer._optimizer_step_pre_hooks) == 0


def test_a_run_that_begins_anew_beside_old_checkpoints_is_told_so(tmp_path: Path) -> None:
    with start().checkpointer(tmp_path) as checkpointer:
        checkpointer.step()
    with start().checkpointer(tmp_path, resume=False) as checkpointer:
        with pytest.warns(CheckpointWarning, match="up to step 1 of a run that this one does not"):
            checkpointer.save(sync=True)
        checkpointer.save(sync=True)


def test_warnings_point_at_the_line_that_led_to_them(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, x=Holder({"x": 1})) as checkpointer:
        checkpointer.save(sync=True)
    with pytest.warns(CheckpointWarning) as told:
        Checkpointer(tmp_path, y=Holder({"x": 1})).close()
    assert {Path(one.filename).name for one in told} == {Path(__file__).name}


def test_the_last_save_is_not_said_to_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(tmp_path, x=Holder({"x": 1}), every=100)
    checkpointer.step()

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("elbowroom.store.checkpoint.system.System.write", fail)
    with pytest.warns(CheckpointWarning, match="not saved: .*there is none before it$"):
        checkpointer.close()


def test_tolerances_are_looked_for_once_there_are_moments(tmp_path: Path) -> None:
    run = start()
    with run.checkpointer(tmp_path, tolerance={"exp_avg_sq": 1e-2, "exp_av": 1e-2}) as checkpointer:
        checkpointer.save(sync=True)
        run.step()
        with pytest.warns(CheckpointWarning, match="names 'exp_av', and no object or") as told:
            checkpointer.step()
            checkpointer.save(sync=True)
    assert len(told) == 1


def test_its_reasoning_is_logged_when_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "elbowroom"),
        Checkpointer(tmp_path, x=Holder({"x": 1})) as checkpointer,
    ):
        for _ in range(5):
            checkpointer.step()
            checkpointer.wait()
    assert "a checkpoint about every" in caplog.text and "a step takes" in caplog.text


def test_where_memory_is_short_the_loop_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elbowroom.store.checkpoint.checkpointer.available_bytes", lambda: 0)
    torch.manual_seed(0)
    states = [torch.randn(30_000)]
    holder = Holder({"x": states[0].clone()})
    with Checkpointer(tmp_path, x=holder, every=1, keep=None) as checkpointer:
        with pytest.warns(CheckpointWarning, match="that much memory is not free: the loop waits"):
            checkpointer.step()
        for _ in range(3):
            # In place: what was saved must have been written by now.
            holder.state["x"].add_(1e-6 * torch.randn(30_000))
            states.append(holder.state["x"].clone())
            checkpointer.step()
    found = Store.open(tmp_path)
    saved = [found.state(found.manifest(name))["x"]["x"] for name in found.names()]
    assert all(torch.equal(a, b) for a, b in zip(saved, states, strict=True))
    # Nothing may change that memory, as rounding would.
    with (
        Checkpointer(tmp_path, x=holder, tolerance={"x": 0.1}) as checkpointer,
        pytest.raises(BudgetUnreachable, match=r"takes .* bytes, and that much memory is not free"),
    ):
        checkpointer.save()


def test_a_save_that_waits_hears_of_other_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they could not write is in no checkpoint of all."""
    with start().checkpointer(tmp_path) as checkpointer:
        told: list[tuple[int, ...]] = []

        def most(*numbers: int) -> tuple[int, ...]:
            told.append(numbers)
            return (1,)

        monkeypatch.setattr(checkpointer._ranks, "most", most)
        with pytest.raises(OSError, match="step 0 was not saved on another rank"):
            checkpointer.save(sync=True)
        assert told == [(0,)]


def test_a_script_that_ends_does_not_wait_long_for_ranks_that_may_be_gone(tmp_path: Path) -> None:
    checkpointer = start().checkpointer(tmp_path)
    assert checkpointer._journal._give_up_at == math.inf
    ending._end_all()
    assert checkpointer._journal._give_up_at < math.inf
    start().checkpointer(tmp_path).close()
