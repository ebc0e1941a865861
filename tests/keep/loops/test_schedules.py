"""Schedules make the fewest steps, and always have the state that they go on from."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.errors import InvalidArgument
from elbowroom.keep.loops import schedules
from elbowroom.keep.loops.schedules import (
    Online,
    backward,
    busiest_slots,
    count_steps,
    fewest_advances,
    placements,
    repetitions,
)


def fewest_by_search(longest: int, most_slots: int) -> dict[tuple[int, int], int]:
    """Minimal counts by dynamic programming, with no formula: the oracle."""
    found: dict[tuple[int, int], int] = {}
    for slots in range(1, most_slots + 1):
        found[0, slots] = found[1, slots] = 0
        for length in range(2, longest + 1):
            if slots == 1:
                found[length, 1] = length * (length - 1) // 2
                continue
            found[length, slots] = min(
                first + found[length - first, slots - 1] + found[first, slots]
                for first in range(1, length)
            )
    return found


def test_the_formula_is_the_least_that_any_schedule_can_do() -> None:
    for (length, slots), least in fewest_by_search(60, 8).items():
        if length:
            assert fewest_advances(length, slots) == least, (length, slots)


def test_schedules_make_as_many_steps_as_the_formula_says() -> None:
    for length in range(1, 201):
        for slots in range(1, 21):
            expected = fewest_advances(length, slots)
            assert count_steps(backward([0], length, slots)) == expected
            kept = placements(length, slots)
            # Those before the last kept state are made by the first run.
            assert kept[-1] + count_steps(backward(kept, length, slots)) == expected
            assert len(kept) <= slots


def follow(kept: list[int], length: int, slots: int) -> list[int]:
    """Carry a schedule out; return the steps in the order in which they are reversed."""
    held, at = set(kept), -1
    done: list[int] = []
    for action in backward(kept, length, slots):
        if action.act == "keep":
            assert at == action.start and action.start not in held
            held.add(action.start)
            assert len(held) <= max(slots, len(kept))
        elif action.act == "free":
            held.remove(action.start)
        else:
            assert action.start in held or at == action.start
            at = action.end if action.act == "advance" else -1
            if action.act == "reverse":
                done += range(action.end - 1, action.start - 1, -1)
    assert not held
    return done


@given(length=st.integers(1, 300), slots=st.integers(1, 25))
def test_a_schedule_never_lacks_what_it_goes_on_from(length: int, slots: int) -> None:
    backwards = list(range(length - 1, -1, -1))
    assert follow([0], length, slots) == backwards
    assert follow(placements(length, slots), length, slots) == backwards


@given(length=st.integers(1, 400), period=st.integers(1, 50))
def test_periodic_states_are_gone_back_over(length: int, period: int) -> None:
    kept = schedules.every(length, period)
    assert follow(kept, length, len(kept)) == list(range(length - 1, -1, -1))


@given(length=st.integers(1, 400), slots=st.integers(1, 20))
def test_an_unknown_length_takes_the_repetitions_that_it_must(length: int, slots: int) -> None:
    online = Online(lambda count: count >= slots)
    held: set[int] = set()
    for step in range(length):
        held -= set(online.offer(step))
        if step in online.kept:
            held.add(step)
        assert held == set(online.kept) and len(held) <= slots and 0 in held
    assert follow(online.kept, length, slots) == list(range(length - 1, -1, -1))
    again = count_steps(backward(online.kept, length, slots))
    # Each step at most r times in all (Wang et al., theorem 4.1), the first run counted.
    assert length + again <= (repetitions(length, slots) + 1) * length


def test_all_states_are_kept_while_there_is_room() -> None:
    online = Online(lambda count: count >= 10)
    for step in range(10):
        assert online.offer(step) == []
    assert online.kept == list(range(10))
    assert count_steps(backward(online.kept, 10, 10)) == 0


def test_what_is_read_most_stays_in_memory() -> None:
    kept = placements(100, 6)
    order = busiest_slots(kept, 100, 6)
    assert sorted(order) == list(range(6))
    uses = dict.fromkeys(range(6), 1)
    depth = {step: number for number, step in enumerate(kept)}
    for action in backward(kept, 100, 6):
        if action.act == "keep":
            depth[action.start] = len(depth)
        if action.act == "free":
            del depth[action.start]
        elif action.start in depth:
            uses[depth[action.start]] += 1
    assert all(uses[one] >= uses[other] for one, other in pairwise(order))


def test_no_slot_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="one at least is needed"):
        fewest_advances(10, 0)
