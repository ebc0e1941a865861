"""Breaks checkpoints in every way there is, for as long as it is given: power, calls, files, kills.

Each part has a share of the time and ends by itself; a part that did not get through says so.
"""

import argparse
import contextlib
import errno
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from elbowroom.errors import CorruptData
from elbowroom.store.checkpoint import Store

from .attempts import Outcome, attempt_saves, attempt_start
from .damages import Flipper, changes_of, check_damage, make_disk, make_lossy_disk
from .disk import Disk
from .faulty import CHANGES, Trip
from .hostile import face, mutate, with_manifest
from .replay import FAR, ROOT, Ledger, Tally, kill_at, replay, save_and_bring, save_in_peace

_MOST_FAULTS = 20
_EVERY_S = 15.0


@dataclass
class Result:
    """What a part has done."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    faults: list[str] = field(default_factory=list[str])
    is_complete: bool = True
    seconds: float = 0.0

    def add(self, what: str, count: int = 1) -> None:
        """So much more of that was done."""
        self.counts[what] = self.counts.get(what, 0) + count


class Clock:
    """Tells when a part has to end, and now and then what it has done."""

    def __init__(
        self, name: str, result: Result, seconds: float, say: Callable[[str], None]
    ) -> None:
        self._name, self._result, self._say = name, result, say
        self._end_s = time.monotonic() + seconds
        self._told_s = time.monotonic()

    @property
    def left_s(self) -> float:
        """Until the end."""
        return self._end_s - time.monotonic()

    def is_over(self) -> bool:
        """Whether to stop here: the time is up, or enough is wrong."""
        if time.monotonic() - self._told_s > _EVERY_S:
            self._told_s = time.monotonic()
            self.tell()
        if len(self._result.faults) >= _MOST_FAULTS or self.left_s < 0:
            self._result.is_complete = False
            return True
        return False

    def tell(self) -> None:
        """What was done so far."""
        done = ", ".join(f"{count:,} {what}" for what, count in self._result.counts.items())
        self._say(f"{self._name}: {done or 'nothing yet'}; {len(self._result.faults)} faults")


Process = Callable[[Disk, Ledger], None]


def cut_power(result: Result, clock: Clock, seed: int) -> None:
    """After every change of a run, and of one that follows a run killed after any change."""
    processes: list[tuple[Process, Path, int]] = [
        (partial(save_in_peace, saves=3, keep=1, is_new=True), ROOT, 1),
        (partial(save_in_peace, saves=2), ROOT, 1),
        (partial(save_and_bring, saves=2, keep=1, is_new=True), FAR, 1),
        (partial(save_in_peace, saves=2, keep=1, is_new=True, size=2), ROOT, 2),
    ]
    disk, ledger = Disk(), Ledger()
    save_in_peace(disk, ledger, 6)
    _replay_into(result, disk, ledger, most=64, seed=seed)
    # One kill of each process after another, so that all get their part of the time.
    going = [_killed_and_cut(result, seed, *process) for process in processes]
    while going and not clock.is_over():
        for one in list(going):
            if next(one, None) is None:
                going.remove(one)


def _killed_and_cut(
    result: Result, seed: int, process: Process, where: Path, size: int
) -> Iterator[int]:
    change, is_killed = 0, True
    while is_killed:
        disk, ledger, is_killed = kill_at(change, process)
        start = len(disk.log)
        process(disk, ledger)
        options: dict[str, Any] = {"start": start, "where": where, "size": size}
        _replay_into(result, disk, ledger, most=5, seed=seed + change, **options)
        result.add("processes killed before")
        change += 1
        yield change


def _replay_into(result: Result, disk: Disk, ledger: Ledger, **options: Any) -> None:
    tally = Tally()
    replay(disk, ledger, tally, **options)
    result.add("moments without power", tally.cuts)
    result.add("disks", tally.disks)
    result.add("different disks judged", tally.judged)
    result.faults += tally.faults


def fail_calls(result: Result, clock: Clock, seed: int) -> None:
    """Every call once, with every error; from every call on; while saving and at the start."""
    del seed
    codes = (errno.EIO, errno.ENOSPC, errno.EINTR, errno.EACCES, errno.EROFS, errno.EDQUOT)
    attempts: list[tuple[str, Callable[[Trip], Outcome], Trip]] = []
    for code in codes:
        for is_new in (True, False):
            saving = partial(attempt_saves, is_new=is_new)
            attempts.append(("saving", saving, Trip(at=1, code=code)))
        lasting = Trip(at=1, code=code, calls=CHANGES, is_lasting=True)
        attempts.append(("saving, lasting", partial(attempt_saves, is_new=True), lasting))
        for is_there in (False, True):
            starting = partial(attempt_start, is_there=is_there)
            attempts.append(("starting", starting, Trip(at=1, code=code)))
    for short in (1, 0):
        trip = Trip(at=1, short=short, calls=frozenset({"write"}))
        attempts.append(("saving, short writes", attempt_saves, trip))
    for what, attempt, trip in attempts:
        at = 1
        while not clock.is_over():
            outcome = attempt(replace(trip, at=at))
            result.faults += [
                f"{what}, call {at} with {errno.errorcode[trip.code]}, {outcome.tripped}: {fault}"
                for fault in outcome.faults
            ]
            if not outcome.tripped:
                break
            result.add(f"faults while {what}")
            at += 1


def damage_files(result: Result, clock: Clock, seed: int) -> None:
    """Flip a bit of every byte of every file; zero, cut, swap and delete; read everything."""
    disk, draw = make_disk(), random.Random(seed)
    for label, file, change in changes_of(disk, draw):
        if clock.is_over():
            return
        other = disk.copy()
        change(other)
        result.add("files changed as a whole or in blocks")
        result.faults += [f"{file} was {label}: {fault}" for fault in check_damage(other)[1]]
    for at in _sealed_bytes(disk, result, draw):
        result.add("bits flipped in manifests and the mark", at)
        if clock.is_over():
            return
    flip_packs(result, clock, make_lossy_disk(), draw, "packs that have lost something", strides=8)
    flip_packs(result, clock, disk, draw, "packs", strides=64)


def flip_packs(
    result: Result, clock: Clock, disk: Disk, draw: random.Random, what: str, strides: int
) -> None:
    """Flip a bit of so many bytes in 64; all of every pack, then what lies between."""
    flipper = Flipper(disk.copy())
    for start in draw.sample(range(64), strides):
        for file, at in flipper.positions(64, start):
            result.faults += flipper.flip(file, at, draw.randrange(8))
            if clock.is_over():
                break
        result.counts[f"bits flipped in {what}"] = flipper.flips
        result.counts[f"of these in {what}, bits that some tensor needs"] = flipper.needed
        result.counts[f"and bits in {what} that change no value"] = flipper.idle
        if not result.is_complete:
            return


def _sealed_bytes(disk: Disk, result: Result, draw: random.Random) -> Iterator[int]:
    """Change every byte of what has a digest of its own; give the number since the last."""
    other = disk.copy()
    store = Store.open(ROOT, other)
    for name in store.names():
        path = f"{ROOT}/manifests/{name}.json"
        data = disk.files()[path[1:]]
        for at in range(len(data)):
            changed = bytearray(data)
            changed[at] ^= 1 << draw.randrange(8)
            other.put(path, bytes(changed))
            with contextlib.suppress(CorruptData):
                store.manifest(name)
                result.faults.append(f"{path} byte {at} was not refused")
            yield 1
        other.put(path, data)
    path = f"{ROOT}/store.json"
    data = disk.files()[path[1:]]
    for at in range(8 * len(data)):
        changed = bytearray(data)
        changed[at // 8] ^= 1 << at % 8
        other.put(path, bytes(changed))
        if Store.open(ROOT, other).id != store.id:
            result.faults.append(f"the mark was not made out with bit {at} changed")
        yield 1


_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 255, 1 << 14, 1 << 31, 1 << 40, 1 << 60, 1 << 63, 1 << 70),
    *(1.5, float("nan"), float("inf"), "", "x", "tensor", "dict", "numpy", "zstd", "xor", "blob"),
    *("float32", "../x.pack", [], [0], [[0]], {}, {"tensor": 0}, {"tuple": []}, [1, 2, 3]),
)


def forge_manifests(result: Result, clock: Clock, seed: int, most: int = 10_000) -> None:
    """Change a manifest anywhere, seal it again, and do all that people do with a store."""
    disk = make_disk()
    for number in range(most):
        if clock.is_over():
            return
        draw = random.Random(f"{seed} {number}")

        def change(held: dict[str, Any], draw: random.Random = draw) -> None:
            for _ in range(draw.randrange(1, 4)):
                mutate(held, draw.getrandbits(32), draw.choice(_VALUES))

        try:
            is_refused = bool(face(with_manifest(disk, change)))
        except Exception as error:
            result.faults.append(f"manifest {number} of seed {seed}: {error!r:.500}")
        else:
            result.add("forged manifests")
            result.add("of these, refused", is_refused)


def kill_trainings(
    result: Result, clock: Clock, seed: int, kills: int, rank_kills: int, say: Callable[[str], None]
) -> None:
    """Kill real trainings: one process, then four; in a process that computes nothing itself."""
    words = ["--kills", kills, "--rank-kills", rank_kills, "--ranks", 4, "--seed", seed]
    command = [sys.executable, "-m", "tests.store.checkpoint.kills", *map(str, words)]
    command += ["--minutes", str(clock.left_s / 60)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None and run.stderr is not None
        for line in run.stderr:
            say(f"kills: {line.rstrip()}")
        told = run.stdout.read()
    if not told:
        result.faults.append(f"the killer has died with {run.returncode}")
        return
    tolls = json.loads(told)
    for name, toll in tolls.items():
        who = "one process" if name == "alone" else "four ranks"
        result.add(f"trainings of {who}", toll["trainings"])
        result.add(f"kills of {who}", toll["kills"])
        result.add(f"kills of {who} with a file half written", toll["kills_while_saving"])
        result.faults += toll["faults"]
    result.add(
        "ranks that ended by themselves when another was killed", tolls["ranks"]["survivors"]
    )
    done = tolls["alone"]["kills"] >= kills and tolls["ranks"]["kills"] >= rank_kills
    result.is_complete = done


# Shares of the time; what a part does not need is left to those after it.
SHARES = {"kills": 0.3, "damage": 0.25, "calls": 0.15, "hostile": 0.1, "power": 0.2}


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev faults", description=__doc__)
    add = parser.add_argument
    add("--only", choices=list(SHARES), action="append", help="some parts, not all")
    add("--minutes", type=float, default=20.0, help="for all of it together")
    add("--kills", type=int, default=1000, help="of trainings of one process")
    add("--rank-kills", type=int, default=60, help="of trainings of four ranks")
    add("--seed", type=int, default=0, help="of all that is drawn by chance")
    add("--json", action="store_true", help="print the results as JSON at the end")
    options = parser.parse_args(words)
    if not options.minutes > 0:
        parser.error("--minutes must be above 0")
    return options


def main(words: Sequence[str]) -> int:
    """Run what the options ask for; 1 if anything was wrong."""
    options = parse(words)
    torch.set_num_threads(1)

    def say(text: str) -> None:
        print(f"[faults] {text}", file=sys.stderr if options.json else sys.stdout, flush=True)

    parts: dict[str, Callable[[Result, Clock, int], None]] = {
        "kills": partial(
            kill_trainings, kills=options.kills, rank_kills=options.rank_kills, say=say
        ),
        "damage": damage_files,
        "calls": fail_calls,
        "hostile": forge_manifests,
        "power": cut_power,
    }
    asked = [name for name in SHARES if name in (options.only or SHARES)]
    end_s = time.monotonic() + 60 * options.minutes
    results: dict[str, Result] = {}
    for number, name in enumerate(asked):
        result = results[name] = Result()
        share = SHARES[name] / sum(SHARES[other] for other in asked[number:])
        start_s = time.monotonic()
        clock = Clock(name, result, max(end_s - start_s, 1.0) * share, say)
        parts[name](result, clock, options.seed)
        result.seconds = time.monotonic() - start_s
        clock.tell()
        for fault in result.faults[:_MOST_FAULTS]:
            say(f"BROKEN {name}: {fault}")
        if not result.is_complete:
            say(f"{name}: stopped before its end, after {result.seconds:.0f} s")
    if options.json:
        print(json.dumps({name: asdict(result) for name, result in results.items()}, indent=1))
    return 1 if any(result.faults for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
