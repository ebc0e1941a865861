"""Calls of the system that fail: it is told, what was good stays, the next save is whole."""

import errno
import os
import shutil
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint import CheckpointWarning, Store
from elbowroom.store.checkpoint.journal import Journal
from elbowroom.store.checkpoint.ranks import Ranks
from elbowroom.store.checkpoint.retention import Keep
from elbowroom.store.checkpoint.system import System

from .attempts import attempt_all, attempt_saves, attempt_start
from .disk import Disk
from .faulty import CHANGES, Failing, Trip
from .held import Holder, checkpointer_on
from .replay import (
    ROOT,
    Ledger,
    Pretended,
    Saver,
    bits_of,
    judge,
    leftovers,
    snapshot_of,
    state_at,
)
from .runs import losses_of, start

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_call_fails_once() -> None:
    calls: dict[str, int] = {}
    attempt = partial(attempt_saves, is_new=True, saves=1)
    assert attempt_all(attempt, Trip(at=1, code=errno.EIO), calls) == []
    assert calls.keys() > CHANGES - {"make_folder"}
    assert sum(calls.values()) > 30


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EINTR])
def test_every_change_fails_once(code: int) -> None:
    calls: dict[str, int] = {}
    attempt = partial(attempt_saves, saves=1)
    assert attempt_all(attempt, Trip(at=1, code=code, calls=CHANGES), calls) == []
    assert sum(calls.values()) > 10


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_from_some_change_on_all_fail(code: int) -> None:
    attempt = partial(attempt_saves, is_new=True, saves=2)
    trip = Trip(at=1, code=code, calls=CHANGES, is_lasting=True)
    assert attempt_all(attempt, trip) == []


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_every_call_at_the_start_fails_once(code: int, is_there: bool) -> None:
    calls: dict[str, int] = {}
    attempt = partial(attempt_start, is_there=is_there, is_new=True)
    assert attempt_all(attempt, Trip(at=1, code=code), calls) == []
    assert sum(calls.values()) > 30


@pytest.mark.parametrize("short", [1, 0])
def test_writes_may_be_short(short: int) -> None:
    """A write that takes one byte, or half of them, each time or once, is gone on with."""
    attempt = partial(attempt_saves, saves=1)
    assert attempt_all(attempt, Trip(at=1, short=short, calls=frozenset({"write"}))) == []
    disk, ledger = Disk(), Ledger()
    trip = Trip(at=1, short=short, calls=frozenset({"write"}), is_lasting=True)
    saver = Saver(failing := Failing(disk, trip), ledger, is_new=True)
    saver.save()
    assert len(failing.tripped) > (400 if short else 15)
    saver.close()
    assert judge(disk, ledger).faults == []


def test_a_write_that_takes_nothing_is_an_error() -> None:
    class Full(Disk):
        def write(self, handle: int, data: memoryview) -> int:
            del handle, data
            return 0

    with pytest.raises(OSError, match="a write wrote nothing"):
        Saver(Full(), Ledger())


def test_a_failed_save_is_told_in_the_background() -> None:
    """At any call, the loop goes on, a warning tells it, and the next save is whole."""
    at, told = 0, 0
    while True:
        at += 7
        disk = Disk()
        failing = Failing(disk)
        checkpointer = checkpointer_on(failing, (holder := Holder()), every=1)
        checkpointer.step()
        checkpointer.wait()
        failing.trip = Trip(at=at, code=errno.ENOSPC)
        holder.state = state_at(2)
        checkpointer.step()
        checkpointer._persister.wait()
        failing.trip = None
        is_saved = [name.step for name in Store.open(ROOT, disk).names()] == [1, 2]
        holder.state = state_at(3)
        if checkpointer._persister._outcomes.empty():
            raise AssertionError("nothing was told")
        outcome = checkpointer._persister._outcomes.get()
        checkpointer._persister._outcomes.put(outcome)
        if outcome.error is None:
            assert is_saved
            checkpointer.step()
        else:
            told += 1
            match = "the checkpoint of step 2 was not saved: .*No space left.*will be tried again"
            with pytest.warns(CheckpointWarning, match=match):
                checkpointer.step()
        checkpointer.close()
        with checkpointer_on(disk, (again := Holder())) as resumed:
            assert resumed.resumed_from == 3
            assert bits_of(again.state) == bits_of(state_at(3))
        if not failing.tripped:
            break
    assert told > 2


def test_a_folder_that_vanishes(tmp_path: Path) -> None:
    run = start()
    checkpointer = run.checkpointer(tmp_path / "run", every=1)
    run.step()
    checkpointer.step()
    checkpointer.wait()
    shutil.rmtree(tmp_path / "run")
    run.step()
    checkpointer.step()
    with pytest.raises(FileNotFoundError):
        checkpointer.wait()
    run.step()
    checkpointer.step()
    with pytest.warns(CheckpointWarning, match="step 3 was not saved"):
        checkpointer.close()
    assert run.losses == losses_of(3)
    with start().checkpointer(tmp_path / "run") as again:  # a clean start
        assert again.resumed_from is None
        again.save(sync=True)


def test_clocks_may_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1e9
    monkeypatch.setattr(time, "time", lambda: now)
    disk, ledger = Disk(), Ledger()
    for jump in (0, -1e6, -2e9, 3e9, -4e9):
        now += jump
        saver = Saver(disk, ledger)
        assert (name := saver.resume()) is None or name.step == saver.step
        saver.save()
        saver.close()
    store = Store.open(ROOT, disk)
    assert [name.step for name in store.names()] == [4, 5]
    assert store.manifest(store.names()[-1]).created_s < 0


def test_a_rank_that_fails_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    failing = Failing(disk)
    first, second = (
        Journal(ROOT, ranks=Pretended(rank, 2), keep=Keep(last=2), system=system)
        for rank, system in enumerate((disk, failing))
    )

    def save(step: int) -> None:
        id = f"{first.next_id():016x}"
        second.write(snapshot_of(state_at(step, 1), step, id))
        first.write(snapshot_of(state_at(step, 0), step, id))

    save(1)
    id = f"{first.next_id():016x}"
    failing.trip = Trip(at=1, code=errno.ENOSPC, calls=frozenset({"write"}))
    with pytest.raises(OSError, match="No space left"):
        second.write(snapshot_of(state_at(2, 1), 2, id))
    with pytest.raises(OSError, match=r"rank 1 could not save its part: .*No space left"):
        first.write(snapshot_of(state_at(2, 0), 2, id))
    # Where not even that can be told, patience ends, sooner if the run is ending in an error.
    monkeypatch.setattr("elbowroom.store.checkpoint.journal.HURRY_S", 0)
    failing.trip = Trip(at=1, code=errno.ENOSPC, calls=CHANGES, is_lasting=True)
    id = f"{first.next_id():016x}"
    with pytest.raises(OSError, match="No space left"):
        second.write(snapshot_of(state_at(3, 1), 3, id))
    first.hurry()
    with pytest.raises(TimeoutError, match="rank 1 has not saved its part of step 3"):
        first.write(snapshot_of(state_at(3, 0), 3, id))
    failing.trip = None
    first.clearing.is_over = lambda: False  # what hurries removes nothing
    save(4)
    store = first.store
    assert [name.step for name in store.names()] == [1, 4]
    for rank in (0, 1):
        state = store.state(store.manifest(store.names()[-1]), rank)
        assert bits_of(state) == bits_of(state_at(4, rank))
    assert not [file for file in disk.files(str(ROOT)) if "parts/" in file or "0002" in file]


def test_nothing_is_removed_under_a_reader() -> None:
    disk, ledger = Disk(), Ledger()
    saver = Saver(disk, ledger, keep=1, is_new=True)
    saver.save()
    store = Store.open(ROOT, disk)
    (name,) = store.names()
    with store.reading():
        saver.save()
        saver.save()
        assert [name.step for name in store.names()] == [1, 2, 3]
        assert (bits_of(store.state(store.manifest(name))),) == ledger.bits[name.id]
    saver.save()
    assert [name.step for name in store.names()] == [4]
    assert leftovers(disk, saver) == []


def hold_elsewhere(folder: Path) -> tuple[int, int]:
    """Another process that writes there until it is killed; return it and a pipe that it has."""
    ready, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        assert os.read(ready, 1) == b"r"
        return child, ready
    try:
        journal = Journal(folder, ranks=Ranks(), keep=Keep())
        os.write(tell, b"r")
        signal.pause()
        journal.close()
    finally:
        os._exit(1)


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elbowroom.store.checkpoint.journal.GOING_S", 0)


@pytest.mark.usefixtures("no_patience")
def test_a_second_job_waits_for_the_death_of_the_first(tmp_path: Path) -> None:
    child, pipe = hold_elsewhere(tmp_path / "run")
    try:
        refusal = f"another run is writing checkpoints to {tmp_path}/run: end it, or name another"
        with pytest.raises(InvalidArgument, match=refusal):
            Journal(tmp_path / "run", ranks=Ranks(), keep=Keep())
        assert Store.open(tmp_path / "run").names() == []  # readers are let in
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(pipe)
    Journal(tmp_path / "run", ranks=Ranks(), keep=Keep()).close()


@pytest.mark.usefixtures("no_patience")
def test_a_lock_is_not_kept_by_those_that_were_forked(tmp_path: Path) -> None:
    """As the workers of a loader, which live on for a while when their run is killed."""
    journal = Journal(tmp_path, ranks=Ranks(), keep=Keep())
    ready, stay = os.pipe()
    child = os.fork()
    if not child:
        os.close(stay)
        os.read(ready, 1)  # until the other end is closed
        os._exit(0)
    try:
        with pytest.raises(InvalidArgument, match="another run"):
            Journal(tmp_path, ranks=Ranks(), keep=Keep())
        journal.close()
        Journal(tmp_path, ranks=Ranks(), keep=Keep()).close()
    finally:
        os.close(stay)
        os.waitpid(child, 0)
        os.close(ready)


def test_a_forked_writer_that_is_killed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start()
    plain, mine = System.write, os.getpid()

    def write(system: System, handle: int, data: memoryview) -> int:
        if os.getpid() != mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(system, handle, data)

    with run.checkpointer(tmp_path, every=99, snapshot="fork") as checkpointer:
        run.step()
        checkpointer.step()
        checkpointer.save(sync=True)
        with monkeypatch.context() as broken:
            broken.setattr(System, "write", write)
            run.step()
            checkpointer.step()
            with pytest.raises(ChildProcessError, match="has ended with 9"):
                checkpointer.save(sync=True)
        assert [name.step for name in Store.open(tmp_path).names()] == [1]
        checkpointer.save(sync=True)
    assert [name.step for name in Store.open(tmp_path).names()] == [1, 2]
    assert not list(tmp_path.rglob("*.part"))
    assert all(Store.open(tmp_path).verify(name) == [] for name in Store.open(tmp_path).names())


def test_a_full_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pytest.importorskip("fsspec.implementations.memory")
    plain = memory.MemoryFile.commit
    monkeypatch.setattr(memory.MemoryFileSystem, "store", {})
    monkeypatch.setattr(memory.MemoryFileSystem, "pseudo_dirs", [""])
    journal = Journal("memory://full/run", ranks=Ranks(), keep=Keep(last=1))

    def save(step: int) -> None:
        journal.write(snapshot_of(state_at(step), step, f"{journal.next_id():016x}"))

    save(1)
    for at in (1, 2):  # its pack, its manifest
        room = iter(range(1, at))

        def commit(file: Any, room: Iterator[int] = room) -> None:
            if next(room, None) is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            plain(file)

        with monkeypatch.context() as broken:
            broken.setattr(memory.MemoryFile, "commit", commit)
            with pytest.raises(OSError, match="No space left"):
                save(2)
        store = Store.open("memory://full/run")
        assert [name.step for name in store.names()] == [1]
        assert bits_of(store.state(store.manifest(store.names()[0]))) == bits_of(state_at(1))
    save(3)
    assert [name.step for name in journal.store.names()] == [3]
    assert bits_of(store.state(store.manifest(store.names()[0]))) == bits_of(state_at(3))
    named = {p.name for p in store.manifest(store.names()[0]).parts[0].packs}
    assert set(store.place.names("packs")) == named
    journal.close()
