"""Whenever the power goes, a committed checkpoint is there, whole, and the next run goes on."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from elbowroom.store.checkpoint import Store
from elbowroom.store.checkpoint.local import LocalPlace

from .disk import Disk, File, Folder, Make, Mark, Operation, Remove, Rename
from .held import Holder, checkpointer_on
from .replay import (
    FAR,
    ROOT,
    Ledger,
    Tally,
    bits_of,
    kill_at,
    replay,
    save_and_bring,
    save_in_peace,
    state_at,
)

Process = Callable[[Disk, Ledger], None]

pytestmark = pytest.mark.usefixtures("one_thread")


def test_power_is_cut_after_every_change_of_a_run() -> None:
    disk, ledger, tally = Disk(), Ledger(), Tally()
    save_in_peace(disk, ledger, 4)
    start = len(disk.log)
    replay(disk, ledger, tally, most=10)
    save_in_peace(disk, ledger, 1)  # a second process, after the first has ended
    replay(disk, ledger, tally, most=6, start=start)
    assert tally.faults == []
    assert tally.cuts > 70 and tally.disks > 300 and tally.judged > 100


PROCESSES: dict[str, tuple[Process, Path, int]] = {
    "sharing": (partial(save_in_peace, saves=1), ROOT, 1),
    "collecting": (partial(save_in_peace, saves=2, keep=1, is_new=True), ROOT, 1),
    "ranks": (partial(save_in_peace, saves=1, keep=1, is_new=True, size=2), ROOT, 2),
    "bringing": (partial(save_and_bring, saves=1, keep=1, is_new=True), FAR, 1),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_a_killed_process_then_another_then_the_power(name: str) -> None:
    """What a dead process has done is seen by the next, and may not be on the disk."""
    process, where, size = PROCESSES[name]
    peace = Disk()
    process(peace, Ledger())
    changes = [number + 1 for number, done in enumerate(peace.log) if is_of_folder(done)]
    if name == "bringing":  # what comes before is as in the others
        changes = [change for change in changes if change > peace.log.index(first_commit(peace))]
    elif name != "collecting":
        changes = changes[::4]
    tally = Tally()
    for change in changes:
        disk, ledger, _ = kill_at(change, process)
        start = len(disk.log)
        process(disk, ledger)
        options = {"size": size, "where": where, "is_new": name != "sharing"}
        replay(disk, ledger, tally, most=3, seed=change, start=start, **options)
    assert tally.faults == []
    assert tally.judged > 50


def is_of_folder(operation: Operation) -> bool:
    return isinstance(operation, Rename | Remove | Make)


def first_commit(disk: Disk) -> Mark:
    marks = (done for done in disk.log if isinstance(done, Mark))
    return next(mark for mark in marks if mark.text.startswith("commit"))


def _sync_nothing(disk: Disk, handle: int) -> None:
    del disk, handle


def _sync_files_only(disk: Disk, handle: int) -> None:
    if isinstance(disk.node_of(handle), File):
        Disk.sync(disk, handle)


def _sync_folders_only(disk: Disk, handle: int) -> None:
    if isinstance(disk.node_of(handle), Folder):
        Disk.sync(disk, handle)


@pytest.mark.parametrize("sync", [_sync_nothing, _sync_files_only, _sync_folders_only])
def test_a_store_that_forgets_to_sync_is_found_out(sync: Callable[[Disk, int], None]) -> None:
    class Forgetful(Disk):
        def sync(self, handle: int) -> None:
            sync(self, handle)

    disk, ledger, tally = Forgetful(), Ledger(), Tally()
    save_in_peace(disk, ledger, 2, is_new=True)
    replay(disk, ledger, tally, most=6)
    assert tally.faults


def test_a_store_that_removes_too_early_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = LocalPlace.sync

    def sync(place: LocalPlace, folder: str) -> None:
        if not isinstance(disk.log[-1], Remove):  # renames are made durable, removals are not
            plain(place, folder)

    monkeypatch.setattr(LocalPlace, "sync", sync)
    disk, ledger, tally = Disk(), Ledger(), Tally()
    save_in_peace(disk, ledger, 3, keep=1, is_new=True)
    replay(disk, ledger, tally, most=6)
    assert any("is missing" in fault for fault in tally.faults)


def test_a_checkpointer_finds_its_way_back_on_any_disk() -> None:
    disk = Disk()
    with checkpointer_on(disk, (first := Holder()), keep=2) as saving:
        for step in range(1, 4):
            first.state = state_at(step)
            saving.step()
            disk.mark(f"begin {step} -")
            saving.save(sync=True)
            disk.mark(f"commit {step} -")
    again, draw, tried = Disk(), random.Random(0), 0
    begun = committed = 0
    for operation in disk.log:
        again.do(operation)
        if isinstance(operation, Mark):
            kind, step, _ = operation.text.split()
            begun, committed = (int(step), committed) if kind == "begin" else (begun, int(step))
            continue
        survivor = draw.choice(list(again.survivors(draw, 4)))
        with checkpointer_on(survivor, (found := Holder())) as resuming:
            assert committed <= resuming.steps <= begun
            assert bits_of(found.state) == bits_of(state_at(resuming.steps))
        tried += 1
    assert tried > 50


def test_disks_are_poured_into_real_folders(tmp_path: Path) -> None:
    """The disk in memory is no other than a real one: a real one reads what it has."""
    disk, ledger = Disk(), Ledger()
    save_in_peace(disk, ledger, 3)
    disk.pour(str(ROOT), tmp_path / "run")
    store = Store.open(tmp_path / "run")
    assert [name.step for name in store.names()] == [2, 3]
    for name in store.names():
        assert store.verify(name) == []
        assert (bits_of(store.state(store.manifest(name))),) == ledger.bits[name.id]
