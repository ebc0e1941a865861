"""A small run saved on any system, and what must be true of every disk that it may leave behind."""

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elbowroom.errors import CorruptData, ElbowroomError
from elbowroom.store.checkpoint.drain import bring
from elbowroom.store.checkpoint.journal import Journal
from elbowroom.store.checkpoint.local import LocalPlace
from elbowroom.store.checkpoint.naming import Name
from elbowroom.store.checkpoint.ranks import Ranks
from elbowroom.store.checkpoint.retention import Keep
from elbowroom.store.checkpoint.snapshot import Buffer, Snapshot, copy_tensors, lay_out
from elbowroom.store.checkpoint.state import flatten
from elbowroom.store.checkpoint.store import Store
from elbowroom.store.checkpoint.system import System

from .disk import Disk, Killed, Mark

ROOT, FAR = Path("/disk/run"), Path("/disk/far")
_LEAF_BYTES = 1 << 14


def state_at(step: int, rank: int = 0, is_new: bool = False) -> dict[str, Any]:
    """What a run has after a step: parts that stay, change a little, change in places, compress.

    If it is new, nothing is as it was: then packs go with their checkpoint.
    """
    if is_new:
        return {
            "steps": step,
            "new": torch.from_numpy(np.random.default_rng([step, rank]).random(9)),
        }
    noise = np.random.default_rng([7, rank])
    fresh = np.random.default_rng([step, rank])
    table = noise.integers(0, 256, 4 * _LEAF_BYTES, np.uint8)
    at = step % 4 * _LEAF_BYTES
    table[at : at + _LEAF_BYTES] = fresh.integers(0, 256, _LEAF_BYTES, np.uint8)
    weight = noise.standard_normal(3000).astype(np.float32)
    return {
        "steps": step,
        "frozen": torch.from_numpy(noise.integers(0, 256, _LEAF_BYTES + 99, np.uint8)),
        "weight": torch.from_numpy(weight * np.float32(1 + 1e-5 * step)).reshape(30, 100),
        "table": torch.from_numpy(table),
        "zeros": torch.zeros(5000),
        "fresh": torch.from_numpy(fresh.standard_normal(40)),
        "none": torch.empty(0, 3),
        "nested": {"losses": [1 / (1 + step)], "name": "é", "flag": torch.tensor(True)},
    }


def bits_of(state: object) -> str:
    """Equal for states that are equal to the last bit."""
    tree, tensors = flatten(state, "state")
    total = hashlib.sha256(json.dumps(tree).encode())
    for where, tensor in tensors:
        total.update(f"{where} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


class Pretended(Ranks):
    """One of several ranks that live in one process, and take turns."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size

    def share(self, *numbers: int) -> tuple[int, ...]:
        return numbers

    def most(self, *numbers: int) -> tuple[int, ...]:
        return numbers


@dataclass
class Ledger:
    """The bits of every checkpoint that was ever begun, by its identity."""

    bits: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def identity(self, order: int) -> str:
        """Of a new checkpoint: counted, not drawn, so that runs repeat."""
        return f"{order:08x}{next(self._numbers):08x}"


class Saver:
    """A process that saves states, of one rank or of several, one after another."""

    def __init__(
        self,
        system: System,
        ledger: Ledger,
        *,
        keep: int = 2,
        size: int = 1,
        is_new: bool = False,
        where: Path = ROOT,
    ) -> None:
        self._ledger, self._system, self._is_new = ledger, system, is_new
        self._where, self.step = where, 0
        self.journals = [
            Journal(where, ranks=Pretended(rank, size), keep=Keep(last=keep), system=system)
            for rank in range(size)
        ]
        for journal in self.journals:
            journal._keep = Keep(last=None)  # chains also where whole states took less room
        self.store = self.journals[0].store

    def resume(self) -> Name | None:
        """Go on from the newest checkpoint; nothing here passes over a damaged one."""
        names = self.store.names()
        if not names:
            return None
        manifest = self.store.manifest(names[-1])
        for rank, journal in enumerate(self.journals):
            assert self.store.state(manifest, rank)["steps"] == names[-1].step
            journal.build_on(names[-1])
        self.step = names[-1].step
        return names[-1]

    def save(self) -> str:
        """Make a step and a checkpoint; return the identity of what is durable now."""
        self.step += 1
        id = self._ledger.identity(self.journals[0].next_id() >> 32)
        states = [state_at(self.step, rank, self._is_new) for rank in range(len(self.journals))]
        self._ledger.bits[id] = tuple(map(bits_of, states))
        self._mark(f"begin {id} {self._where}")
        # The first rank waits for the others' parts, so it comes last.
        for rank in reversed(range(len(self.journals))):
            self.journals[rank].write(snapshot_of(states[rank], self.step, id))
        self._mark(f"commit {id} {self._where}")
        return id

    def close(self) -> None:
        for journal in self.journals:
            journal.close()

    def _mark(self, text: str) -> None:
        if isinstance(self._system, Disk):
            self._system.mark(text)


def snapshot_of(state: object, step: int, id: str) -> Snapshot:
    """As a Checkpointer takes it."""
    tree, tensors = flatten(state, "state")
    pieces, nbytes = lay_out(tensors)
    buffer = Buffer()
    buffer.reserve(nbytes)
    copy_tensors(tensors, pieces, buffer)
    return Snapshot(step=step, tree=tree, facts={"id": id}, pieces=pieces, buffer=buffer)


@dataclass
class Verdict:
    """What was found on a disk, and what is wrong with it."""

    newest: str | None = None
    faults: list[str] = field(default_factory=list[str])


def judge(
    disk: Disk, ledger: Ledger, *, size: int = 1, where: Path = ROOT, is_new: bool = False
) -> Verdict:
    """Start on that disk as a new process does, read everything, and save once more."""
    verdict = Verdict()
    try:
        saver = Saver(disk, ledger, size=size, where=where, is_new=is_new)
        names = saver.store.names()
        verdict.newest = names[-1].id if names else None
        for name in names:
            verdict.faults += _faults_of(saver, name, ledger)
        saver.resume()
        id = saver.save()
        (last,) = saver.store.names()[-1:]
        if last.id != id:
            verdict.faults.append(f"{id} was saved, and {last.id} is the newest")
        verdict.faults += map(str, saver.store.verify(last))
        verdict.faults += _faults_of(saver, last, ledger)
        verdict.faults += [f"{file} was left behind" for file in leftovers(disk, saver, where)]
        saver.close()
    except (ElbowroomError, OSError) as error:
        verdict.faults.append(f"{type(error).__name__}: {error}")
    return verdict


def _faults_of(saver: Saver, name: Name, ledger: Ledger) -> list[str]:
    """Every checkpoint that can be seen is whole, the newest and all others."""
    try:
        manifest = saver.store.manifest(name)
        ranks = range(len(manifest.parts))
        bits = tuple(bits_of(saver.store.state(manifest, rank)) for rank in ranks)
    except CorruptData as error:
        return [str(error)]
    return [] if bits == ledger.bits.get(name.id) else [f"{name} has other bits than were saved"]


def leftovers(disk: Disk, saver: Saver, where: Path = ROOT) -> list[str]:
    """Files that no checkpoint needs."""
    named = {"store.json", "writer", "readers"}
    for name in saver.store.names():
        named.add(f"manifests/{name}.json")
        for part in saver.store.manifest(name).parts:
            named |= {f"packs/{pack.name}" for pack in part.packs}
    return sorted(disk.files(str(where)).keys() - named)


@dataclass
class Tally:
    """How much was tried."""

    cuts: int = 0  # moments at which the power was cut
    disks: int = 0  # that may be found then
    judged: int = 0  # those of them that differ
    faults: list[str] = field(default_factory=list[str])


def replay(
    disk: Disk,
    ledger: Ledger,
    tally: Tally,
    *,
    most: int,
    seed: int = 0,
    start: int = 0,
    **options: Any,
) -> None:
    """Cut the power after every change in the log from `start` on, and judge what may be left.

    Of the disks that may be found after one change, at most so many are looked at; `options` are
    for those who judge.
    """
    draw = random.Random(seed)
    again, where = Disk(), options.get("where", ROOT)
    allowed: list[str | None] = [None]
    known: dict[str, Verdict] = {}
    for number, operation in enumerate(disk.log):
        again.do(operation)
        if isinstance(operation, Mark):
            kind, id, place = operation.text.split()
            if place == str(where):
                # What was begun may be there; once it is committed, nothing older may be.
                allowed = [*allowed, id] if kind == "begin" else [id]
        elif number >= start:
            tally.cuts += 1
            for survivor in again.survivors(draw, most):
                tally.disks += 1
                key = _key(survivor)
                if key not in known:
                    tally.judged += 1
                    fresh = Ledger(ledger.bits, itertools.count(1 << 16))
                    known[key] = judge(survivor, fresh, **options)
                faults = list(known[key].faults)
                if known[key].newest not in allowed:
                    faults.append(f"{known[key].newest} is the newest, not one of {allowed}")
                tally.faults += [f"after change {number}, {operation!r:.150}: {f}" for f in faults]


def _key(disk: Disk) -> str:
    total = hashlib.sha256()
    for path, data in disk.files().items():
        total.update(f"{path} {len(data)}\0".encode() + data)
    for folder in ("/", "/disk", str(ROOT), str(FAR)):
        total.update(repr(sorted(disk.folders(folder))).encode())
    return total.hexdigest()


def save_in_peace(disk: Disk, ledger: Ledger, saves: int, **options: Any) -> None:
    """A process that goes on from what is there, saves so often and ends."""
    saver = Saver(disk, ledger, **options)
    saver.resume()
    for _ in range(saves):
        saver.save()
    saver.close()


def save_and_bring(disk: Disk, ledger: Ledger, saves: int, **options: Any) -> None:
    """The same, and what is newest is brought to a second place, before and after each save."""
    saver = Saver(disk, ledger, **options)
    far = Store.make(LocalPlace(FAR, disk), identity=saver.store.id)
    saver.resume()
    for number in range(saves + 1):
        if number:
            saver.save()
        for name in saver.store.names()[-1:]:
            disk.mark(f"begin {name.id} {FAR}")
            bring(saver.store, far, name)
            disk.mark(f"commit {name.id} {FAR}")
            far.collect(far.names()[-2:], upto=name.order)
    saver.close()


def kill_at(change: int, process: Callable[[Disk, Ledger], None]) -> tuple[Disk, Ledger, bool]:
    """Run a process until it has changed the disk so often; return also whether it was killed."""
    disk, ledger = Disk(), Ledger()
    disk.kill_at = change
    try:
        process(disk, ledger)
    except Killed:
        return disk, ledger, True
    finally:
        disk.kill()
    return disk, ledger, False
