"""Which checkpoints stay, also when a run goes back, finds damage, or is tidied up behind."""

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from elbowroom.store.checkpoint import Checkpointer, CheckpointWarning, Keep, Store, drain
from elbowroom.store.checkpoint.naming import Name

from .holders import Holder, flip
from .runs import start


def named(*steps: int) -> list[Name]:
    return [Name(step=step, id=f"{order:08x}00000000") for order, step in enumerate(steps, 1)]


def steps_of(names: list[Name]) -> list[int]:
    return [name.step for name in names]


@pytest.mark.parametrize(
    ("steps", "stay"),
    [
        ((1, 4, 7, 10, 13, 16), [1, 10, 16]),
        # Back to 4: what it had reached then stays, until it has come as far again.
        ((1, 4, 7, 10, 13, 16, 5), [1, 10, 5]),
        ((1, 4, 7, 10, 13, 16, 5, 9, 12), [1, 12]),
        ((1, 4, 7, 10, 13, 16, 5, 9, 12, 15), [1, 12, 15]),
        ((5, 5, 5), [5]),
    ],
)
def test_one_of_so_many_steps_is_of_the_run_that_went_on(
    steps: tuple[int, ...], stay: list[int]
) -> None:
    names = named(*steps)
    kept = Keep(last=1, every=10).choose(names)
    assert steps_of(kept) == stay
    assert kept[-1] == names[-1]


def test_the_last_are_the_last_to_be_saved() -> None:
    assert steps_of(Keep(last=2).choose(named(1, 5, 9, 3))) == [9, 3]
    assert steps_of(Keep(last=None).choose(named(3, 1))) == [3, 1]


def test_damaged_ones_do_not_take_the_places_of_whole_ones(tmp_path: Path) -> None:
    run = start()
    with run.checkpointer(tmp_path, every=1, keep=2) as checkpointer:
        for _ in range(4):
            run.step()
            checkpointer.step()
            checkpointer.wait()
    store = Store.open(tmp_path)
    flip(tmp_path / "packs" / f"{store.names()[-1]}-r0.pack", 100)
    assert [not store.verify(name) for name in store.names()] == [True, False]
    with (
        pytest.warns(CheckpointWarning, match="went back to step 3"),
        run.checkpointer(tmp_path, every=1, keep=2) as checkpointer,
    ):
        run.step()
        checkpointer.step()
        checkpointer.wait()
        # That of step 3 would be gone, with the damaged one and the new one being two.
        assert [not store.verify(name) for name in store.names()] == [True, False, True]


def test_what_vanished_behind_a_run_is_written_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    frozen, head = nn.Linear(200, 200), nn.Linear(200, 2)
    model = nn.Sequential(frozen, head)
    with Checkpointer(tmp_path, model=model, every=1, keep=2) as checkpointer:
        checkpointer.step()
        checkpointer.wait()
        (old,) = (tmp_path / "packs").iterdir()
        for cut in (False, True):
            with torch.no_grad():
                head.weight.add_(1)
            # What a scratch disk is cleared of: files that nobody has written to for long.
            if cut:
                old = max((tmp_path / "packs").iterdir())
                old.write_bytes(old.read_bytes()[:-1])
            else:
                old.unlink()
            checkpointer.step()
            with pytest.warns(CheckpointWarning, match=f"{old.name} is gone or cut short"):
                checkpointer.wait()
            store = Store.open(tmp_path)
            assert store.verify(store.names()[-1]) == []


def test_a_slow_far_tier_does_not_fill_the_near_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, gate, begun = drain.copy_file, threading.Event(), threading.Event()

    def copy_late(*given: object) -> None:
        begun.set()
        assert gate.wait(60)
        real(*given)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(drain, "copy_file", copy_late)
    holder = Holder({"x": 0})
    with Checkpointer(
        tmp_path / "near", x=holder, every=1, keep=1, far=tmp_path / "far"
    ) as checkpointer:
        checkpointer.step()
        assert begun.wait(60)
        for _ in range(4):
            checkpointer.step()
            checkpointer.wait()
        store = Store.open(tmp_path / "near")
        assert len(store.names()) == 5  # nothing is removed while it is on its way
        gate.set()
        assert checkpointer._journal._drain is not None
        checkpointer._journal._drain.wait()
        assert steps_of(store.names()) == [5]
    assert steps_of(Store.open(tmp_path / "far").names()) == [5]


def test_what_the_next_one_builds_on_stays(tmp_path: Path) -> None:
    """Something else may be removed between going back and the next checkpoint."""
    torch.manual_seed(0)
    holder = Holder({"x": torch.randn(20_000)})
    with Checkpointer(tmp_path, x=holder, every=1, keep=3) as checkpointer:
        for _ in range(3):
            checkpointer.step()
            checkpointer.wait()
            holder.state = {"x": torch.randn(20_000)}
        checkpointer.restore(1)
        checkpointer._journal.clearing._keep = Keep(last=1)
        checkpointer._journal.clearing.clear()
        checkpointer.save(sync=True)
        store = Store.open(tmp_path)
        assert store.verify(store.names()[-1]) == []


def test_what_is_committed_while_others_are_removed_stays(tmp_path: Path) -> None:
    """It is newer than all that were looked at when it was decided what stays."""
    holder = Holder({"x": 0})
    with Checkpointer(tmp_path, x=holder, every=1, keep=None) as checkpointer:
        for _ in range(3):
            checkpointer.step()
            checkpointer.wait()
    store = Store.open(tmp_path)
    first, second, third = store.names()
    assert store.collect([second], upto=second.order).names == (first,)
    assert store.names() == [second, third]
    assert store.verify(third) == []
