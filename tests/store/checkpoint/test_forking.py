"""Snapshots by fork are of the moment of the fork, and are chosen where they pay."""

from pathlib import Path

import pytest
import torch
from torch import nn

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint import Checkpointer, CheckpointWarning, Store
from elbowroom.store.checkpoint.forking import Choice

from .runs import losses_of, start


def test_a_forked_snapshot_is_of_its_moment(tmp_path: Path) -> None:
    plain = losses_of(12)
    for stop in (5, 12):
        run = start(seed=stop % 5)
        with run.checkpointer(tmp_path, every=1, snapshot="fork", keep=None) as checkpointer:
            while len(run.losses) < stop:
                run.step()
                checkpointer.step()
    assert run.losses == plain
    store = Store.open(tmp_path)
    steps = [name.step for name in store.names()]
    assert steps[0] == 1 and len(steps) > 3
    for name in store.names():
        assert store.verify(name) == []
        assert store.state(store.manifest(name))["progress"]["losses"] == plain[: name.step]


def test_it_takes_increments_and_removes_what_is_old(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 4))
    held = {path.name for path in Path("/proc/self/fd").iterdir()}
    last = model.get_parameter("1.weight")
    with Checkpointer(tmp_path, model=model, snapshot="fork", keep=1) as checkpointer:
        for _ in range(3):
            with torch.no_grad():
                last.copy_(torch.randn(4, 600))
            checkpointer.save(sync=True)
    assert len(Store.open(tmp_path).names()) == 1
    newest = max((tmp_path / "packs").iterdir())
    assert newest.stat().st_size < 100_000
    assert {path.name for path in Path("/proc/self/fd").iterdir()} == held
    again = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 4))
    Checkpointer(tmp_path, model=again).close()
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )


def test_strides_gaps_and_nothing(tmp_path: Path) -> None:
    held = {"t": torch.randn(5, 7).t(), "gaps": torch.randn(9, 9)[::2], "none": torch.zeros(0, 3)}

    class Holder:
        def state_dict(self) -> dict[str, torch.Tensor]:
            return held

        def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
            held.update(state)

    before = {name: value.clone() for name, value in held.items()}
    with Checkpointer(tmp_path, model=Holder(), snapshot="fork") as checkpointer:
        checkpointer.save(sync=True)
        checkpointer.restore()
    assert all(torch.equal(held[name], value) for name, value in before.items())


def test_what_goes_wrong_in_the_child_is_told(tmp_path: Path) -> None:
    run = start()
    with run.checkpointer(tmp_path, every=1, snapshot="fork") as checkpointer:
        run.step()
        checkpointer.step()
        checkpointer.wait()
        (tmp_path / "packs").rename(tmp_path / "gone")
        run.step()
        checkpointer.step()
        with pytest.raises(ChildProcessError, match="No such file or directory"):
            checkpointer.wait()
        run.step()
        checkpointer.step()
        checkpointer._persister.wait()
        with pytest.warns(CheckpointWarning, match="step 3 was not saved"):
            checkpointer._tell_outcomes()
        (tmp_path / "gone").rename(tmp_path / "packs")


def test_the_choice_goes_by_what_was_seen() -> None:
    large = [("x", torch.empty(1).expand(32 << 20))]
    choice = Choice("auto")
    picked = []
    for cost in (1.0, 1.0, 1.0, 0.2, 0.2, 0.2, 0.2):
        picked.append(choice.pick(large, 0.01))
        choice.saw(cost)
    assert picked == ["copy"] * 3 + ["fork"] * 4
    assert choice.pick(large, 0.9) == "copy"
    for _ in range(5):
        choice.pick(large, 0.01)
        choice.saw(3.0)
    assert choice.pick(large, 0.01) == "copy"
    small = [("x", torch.zeros(10))]
    choice = Choice("auto")
    for _ in range(9):
        assert choice.pick(small, 0.0) == "copy"
        choice.saw(1.0)
    with pytest.raises(InvalidArgument, match="snapshot must be one of auto, copy, fork"):
        Choice("spoon")
