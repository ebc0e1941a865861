"""Saving while one call of the system fails: what was tried, and what must hold afterwards."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from elbowroom.errors import ElbowroomError

from .disk import Disk
from .faulty import Failing, Trip
from .replay import ROOT, Ledger, Saver, judge, leftovers


@dataclass
class Outcome:
    """How an attempt has ended."""

    tripped: list[str] = field(default_factory=list[str])  # calls that have failed
    said: str = ""  # what was raised
    faults: list[str] = field(default_factory=list[str])


def attempt_saves(trip: Trip, *, is_new: bool = False, saves: int = 2) -> Outcome:
    """Save once in peace, then with a fault, then in peace again."""
    disk, ledger, outcome = Disk(), Ledger(), Outcome()
    failing = Failing(disk)
    saver = Saver(failing, ledger, keep=1, is_new=is_new)
    good = saver.save()
    failing.trip = trip
    begun: list[str] = []
    for _ in range(saves):
        failing.tripped.clear()
        try:
            good, begun = saver.save(), []
        except (OSError, ElbowroomError) as error:
            outcome.said = str(error)
            begun += list(ledger.bits)[-1:]  # it may be there, whole, if only the last sync failed
            if not failing.tripped:
                outcome.faults.append(f"raised without a cause: {error}")
        _check_found(disk, ledger, {good, *begun}, outcome, is_new)
        is_cleared = "remove" not in failing.tripped and not trip.is_lasting
        if is_cleared and (left := [f for f in disk.files(str(ROOT)) if f.endswith(".part")]):
            outcome.faults.append(f"left {left}")
        outcome.tripped += failing.tripped
    failing.trip = None
    last = saver.save()
    outcome.faults += [f"{file} was left behind" for file in leftovers(disk, saver)]
    _check_found(disk, ledger, {last}, outcome, is_new)
    saver.close()
    return outcome


def _check_found(
    disk: Disk, ledger: Ledger, allowed: set[str], outcome: Outcome, is_new: bool
) -> None:
    """A process that starts now finds one of these, also if nothing more comes to the disk."""
    for found in (disk.copy(), next(disk.survivors(random.Random(0), 2))):
        verdict = judge(found, Ledger(ledger.bits), is_new=is_new)
        outcome.faults += verdict.faults
        if verdict.newest not in allowed:
            outcome.faults.append(f"{verdict.newest} is the newest, not one of {allowed}")


def attempt_start(trip: Trip, *, is_there: bool, is_new: bool = False) -> Outcome:
    """Open a store, or make one, and go on from what it has, with a fault; then without."""
    disk, ledger, outcome = Disk(), Ledger(), Outcome()
    allowed: set[str | None] = {None}
    if is_there:
        saver = Saver(disk, ledger, keep=2, is_new=is_new)
        saver.save()
        allowed = {saver.save()}
        saver.close()
    failing = Failing(disk, trip)
    saver = None
    try:
        saver = Saver(failing, ledger, keep=2, is_new=is_new)
        saver.resume()
    except (OSError, ElbowroomError) as error:
        outcome.said = str(error)
    outcome.tripped = list(failing.tripped)
    failing.trip = None
    if saver is not None:
        saver.close()
    verdict = judge(disk, Ledger(ledger.bits), is_new=is_new)
    outcome.faults += verdict.faults
    if verdict.newest not in allowed:
        outcome.faults.append(f"{verdict.newest} is the newest, not one of {allowed}")
    return outcome


def attempt_all(
    attempt: Callable[[Trip], Outcome], trip: Trip, tally: dict[str, int] | None = None
) -> list[str]:
    """Have the first call fail, then the second, and so on to the last; return what is wrong."""
    faults: list[str] = []
    for at in itertools.count(trip.at):
        outcome = attempt(replace(trip, at=at))
        faults += [f"call {at}, {outcome.tripped}: {fault}" for fault in outcome.faults]
        if not outcome.tripped:
            return faults
        if tally is not None:
            for call in outcome.tripped[:1]:
                tally[call] = tally.get(call, 0) + 1
    raise AssertionError
