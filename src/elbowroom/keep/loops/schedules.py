"""When to keep the state of a loop, and which steps to make again on the way back.

To go back through a loop, the state before each step is needed in reverse order. With fewer slots
than steps some are kept, and the others are made again from the one before them. Griewank and
Walther (Algorithm 799, revolve) do that with the fewest steps, for a length that is known. Wang,
Moin and Iaccarino (SIAM J. Sci. Comput. 31(4), 2009) place slots while the length is unknown, so
that no step is made again more often than it must.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import Literal

from elbowroom.errors import InvalidArgument

Act = Literal["advance", "keep", "free", "reverse", "tape", "take"]


@dataclass(frozen=True, slots=True)
class Action:
    """What to do next.

    `advance`: make the steps from `start` up to `end`, beginning with a kept state or where the
    last advance has ended. `keep`: put the state before step `start` into a slot; `free`: take it
    out. `reverse`: go back over the steps from `start` up to `end`, whose first state is at hand.
    """

    act: Act
    start: int
    end: int


def repetitions(length: int, slots: int) -> int:
    """How often the busiest step has to be made: the least r with C(slots + r, slots) >= length."""
    _check(length, slots)
    r = 0
    while comb(slots + r, slots) < length:
        r += 1
    return r


def fewest_advances(length: int, slots: int) -> int:
    """t(l, s) = r l - C(s + r, r - 1): the least steps made to go back over a loop.

    The state at the start has one of the slots. Steps that are made with a tape are not counted.
    """
    r = repetitions(length, slots)
    return r * length - (comb(slots + r, r - 1) if r else 0)


@lru_cache(maxsize=4096)
def split(length: int, slots: int) -> int:
    """How far to go before the next state is kept, so that the rest takes the fewest steps.

    With the repetition number r, a part of at most C(s + r - 1, s) steps can be gone back over with
    one repetition less than the whole, and the rest of at most C(s - 1 + r, s - 1) steps with one
    slot less; both must also be long enough not to waste their own repetitions.
    """
    if slots == 1:
        return length - 1
    r = repetitions(length, slots)
    least_after = comb(slots + r - 2, slots - 1) if r else 0
    return max(1, min(comb(slots + r - 1, slots), length - least_after, length - 1))


def placements(length: int, slots: int) -> list[int]:
    """Steps before which a state is kept while a loop of known length runs for the first time."""
    found, start = [0], 0
    while length - start > 1 and slots > 1:
        start += split(length - start, slots)
        slots -= 1
        found.append(start)
    return found


def every(length: int, period: int) -> list[int]:
    """Steps before which a state is kept at equal distances."""
    return list(range(0, max(length, 1), period))


def backward(kept: list[int], length: int, slots: int) -> Iterator[Action]:
    """Go back over a loop whose states before these steps have been kept.

    With those of `placements`, the first run included, no schedule makes fewer steps.
    """
    end = length
    for number in range(len(kept) - 1, -1, -1):
        yield from _turn(kept[number], end, max(1, slots - number))
        yield Action("free", kept[number], kept[number])
        end = kept[number]


def _turn(start: int, end: int, slots: int) -> Iterator[Action]:
    """Go back over a part; the state before it is kept."""
    # Parts that wait for the ones behind them: where each begins and ends, and its slots.
    waiting = [(start, end, slots)]
    while waiting:
        start, end, slots = waiting.pop()
        while end - start > 1:
            middle = start + split(end - start, slots)
            yield Action("advance", start, middle)
            if slots > 1:
                yield Action("keep", middle, middle)
                waiting.append((start, middle, slots))
                start, slots = middle, slots - 1
                continue
            yield Action("reverse", middle, end)
            end = middle
        if end > start:
            yield Action("reverse", start, end)
        if waiting:
            yield Action("free", start, start)


def count_steps(actions: Iterator[Action]) -> int:
    """The steps that a schedule advances."""
    return sum(action.end - action.start for action in actions if action.act == "advance")


class Online:
    """Chooses states while nobody knows how long the loop will be.

    Every state has a level. One is dispensable when a later one has a higher level, for then the
    stretch behind it has been given up already to that level.
    """

    def __init__(self, is_full: Callable[[int], bool]) -> None:
        """`is_full(count)` says whether there is no room beside so many."""
        self._is_full = is_full
        self._levels: dict[int, float] = {}

    def __contains__(self, step: int) -> bool:
        return step in self._levels

    @property
    def kept(self) -> list[int]:
        """Steps whose states are kept, in order."""
        return sorted(self._levels)

    def offer(self, step: int) -> list[int]:
        """The state before this step, the next one, is kept; return which ones to free for it."""
        if not self._levels:
            self._levels[step] = float("inf")
            return []
        freed: list[int] = []
        level = 0.0
        while self._is_full(len(self._levels)) and len(self._levels) > 1:
            found = self._dispensable()
            if found is None:
                found = max(self._levels)
                level = max(level, self._levels[found] + 1)
            freed.append(found)
            del self._levels[found]
        if self._is_full(len(self._levels)):
            return freed  # there is room for the start alone
        self._levels[step] = level
        return freed

    def _dispensable(self) -> int | None:
        highest = -1.0
        for step in sorted(self._levels, reverse=True):
            if self._levels[step] < highest:
                return step
            highest = max(highest, self._levels[step])
        return None


def busiest_slots(kept: list[int], length: int, slots: int) -> list[int]:
    """Numbers of slots, that with the most reads and writes first: it belongs into memory.

    Slots are filled like a stack, so a number is a depth (Stumm and Walther, SIAM J. Sci. Comput.
    31(3), 2009: the least busy ones go to the disk).
    """
    uses = [0] * max(slots, len(kept))
    depth = {step: number for number, step in enumerate(kept)}
    for number in range(len(kept)):
        uses[number] += 1
    for action in backward(kept, length, slots):
        if action.act == "keep":
            depth[action.start] = len(depth)
            uses[depth[action.start]] += 1
        elif action.act == "free":
            del depth[action.start]
        elif action.start in depth:
            uses[depth[action.start]] += 1
    return sorted(range(len(uses)), key=lambda number: -uses[number])


def _check(length: int, slots: int) -> None:
    if slots < 1 or length < 0:
        raise InvalidArgument(
            f"a loop of {length} steps cannot be gone back over with {slots} slots: one at least "
            "is needed"
        )
