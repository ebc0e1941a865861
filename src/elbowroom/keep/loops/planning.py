"""The least time under a budget: what to keep of a loop, and what to make again."""

import math
from pathlib import Path

from elbowroom.errors import BudgetUnreachable
from elbowroom.host import TRIM_FROM_BYTES
from elbowroom.keep.loops.history import LEAST_BYTES
from elbowroom.keep.loops.pilot import Pilot
from elbowroom.keep.loops.plans import Plan
from elbowroom.keep.loops.schedules import fewest_advances

# Of a gradient's relative error, the share that a value of the history may be off, relative to the
# range of its frame: measured on waves, the gradient is off by one to 1.7 times as much as the
# values are.
SHARE = 0.5

# Bytes a second, encoded and decoded, until better is known.
_CODED_BYTES_PER_S = 8e8

# No frame is hoped to become smaller than that many times, anchors and interpolation together.
_MOST_RATIO = 1000

# States around a step: with slots, the one at hand, the last one, and what gradients come in and go
# out; a history has the last one, and its gradient.
_AROUND, _AROUND_HISTORY = 5, 2

# What a step takes of the process, in what its tensors have: there are holes in the heap. Large
# tensors lie on pages of 2 MiB, of which each has a part only.
_HOLES, _LARGE_HOLES, _LARGE_BYTES = 1.2, 2.2, 2 << 20

# Very large ones have pages of their own, which go back when they do.
_APART_HOLES, _APART_BYTES = 1.05, 128 << 20


def choose(
    pilot: Pilot,
    length: int | None,
    *,
    memory_bytes: int,
    tolerance: float,
    folder: Path | None = None,
) -> Plan:
    """The plan that is expected to be the fastest."""
    if length is not None:
        taped = int(_holes(pilot) * length * pilot.taped_bytes)
        if taped + _surroundings(pilot, _AROUND_HISTORY) <= memory_bytes:
            slots = max(2, (memory_bytes - _surroundings(pilot)) // pilot.slot_bytes)
            reason = "all that autograd keeps fits"
            return Plan(kind="tape", slots=min(slots, length), reason=reason)
    try:
        replay, replay_s = plan_replay(pilot, length, memory_bytes)
    except BudgetUnreachable:
        history = plan_history(pilot, length, memory_bytes) if tolerance else None
        if history is not None:
            return history
        if _plain_bytes(pilot, length) <= memory_bytes:
            return Plan(kind="full", reason="a plain loop takes no more")
        raise
    history = plan_history(pilot, length, memory_bytes, replay.slots) if tolerance else None
    if history is None:
        return replay
    steps = length or 1000
    coded_s = pilot.tape_bytes / _CODED_BYTES_PER_S
    history_s = steps * (pilot.tape_s + pilot.backward_s + coded_s)
    return history if history_s < replay_s else replay


def plan_history(
    pilot: Pilot, length: int | None, memory_bytes: int, slots: int = 2
) -> Plan | None:
    """Keep the tape, encoded; None where no ratio would do."""
    if not pilot.is_seen:
        return None
    room = memory_bytes - _surroundings(pilot, _AROUND_HISTORY)
    if room <= 0 or (length or 0) * pilot.tape_bytes / _MOST_RATIO > room:
        return None
    if pilot.tape_bytes < LEAST_BYTES * max(1, pilot.tape_tensors):
        return None  # small tensors are kept as they are
    return Plan(
        kind="history",
        slots=slots,
        history_bytes=room,
        reason=f"all that autograd keeps, {pilot.tape_bytes:,} bytes a step, is encoded",
    )


def plan_replay(pilot: Pilot, length: int | None, memory_bytes: int) -> tuple[Plan, float]:
    """Keep some states; also the time it is expected to take, in seconds.

    States are kept as they are: a step may well take differences of its state, which are small
    beside the values, and an error of a state is not small beside them. What autograd saves is what
    gradients are made of, and there an error stays what it is.
    """
    steps = length or 1000
    best: tuple[float, int, int] | None = None
    segment = 1
    while segment <= steps:
        tape = _holes(pilot) * (segment - 1) * pilot.taped_bytes
        room = memory_bytes - tape - _surroundings(pilot)
        slots = max(int(room // pilot.slot_bytes), int(room >= pilot.state_bytes))
        if slots >= 1:
            units = -(-steps // segment)
            # The first run makes all steps and places what it can.
            again = fewest_advances(units, slots) - (units - 1 if slots > 1 else 0)
            seconds = steps * (pilot.advance_s + pilot.tape_s + pilot.backward_s)
            seconds += again * segment * pilot.advance_s
            if best is None or seconds < best[0]:
                best = seconds, segment, min(slots, units)
        segment = max(segment + 1, int(segment * 1.1))
    if best is None:
        least = _surroundings(pilot) + pilot.state_bytes
        raise BudgetUnreachable(
            f"memory={memory_bytes:,} bytes is less than a single step takes: {least:,} bytes is "
            "the least, of which one state is kept and all others are made again"
        )
    seconds, segment, slots = best
    return (
        Plan(
            kind="replay",
            slots=slots,
            segment=segment,
            schedule="revolve" if length is not None else "online",
            reason=f"{slots} states of {pilot.state_bytes:,} bytes are kept, and {segment} steps "
            "taped at once",
        ),
        seconds,
    )


def _surroundings(pilot: Pilot, around: int = _AROUND) -> int:
    """What there is beside all that is kept: one step with its backward, and states around it."""
    untrimmed = TRIM_FROM_BYTES if pilot.step_bytes > TRIM_FROM_BYTES else 0
    return int(_holes(pilot) * pilot.step_bytes) + around * pilot.state_bytes + untrimmed


def _plain_bytes(pilot: Pilot, length: int | None) -> float:
    """What a for-loop would take."""
    if length is None:
        return math.inf
    return length * pilot.taped_bytes + max(pilot.step_bytes - pilot.tape_bytes, pilot.state_bytes)


def _holes(pilot: Pilot) -> float:
    if pilot.state_bytes >= _APART_BYTES:
        return _APART_HOLES
    return _LARGE_HOLES if pilot.state_bytes >= _LARGE_BYTES else _HOLES
