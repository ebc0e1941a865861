"""Holes of the heap are given back where that is worth its page faults."""

import pytest

from elbowroom.keep.activations.heap import _HOLDS, _LEARNED, _PILED, ALWAYS_BYTES, Heap

MB = 1 << 20


class Machine:
    """A heap of which each pass leaves some resident: so much at first, and more on top of it."""

    def __init__(self, once: int, more: int) -> None:
        self._once, self._more = once, more
        self.resident = 100 * MB
        self.trims: list[int] = []
        self.passes = 0
        self._since = 0
        self.heap = Heap(lambda: self.resident, self._trim)

    def _trim(self) -> None:
        self.trims.append(self.passes)
        self.resident, self._since = 100 * MB, 0

    def run(self, count: int, saved_bytes: int = 200 * MB) -> None:
        for _ in range(count):
            self.heap.before_pass(saved_bytes)
            self.resident += self._more if self._since else self._once
            self._since += 1
            self.passes += 1


def test_it_goes_on_where_passes_pile_up() -> None:
    machine = Machine(once=50 * MB, more=20 * MB)
    machine.run(40)
    trial = range(_LEARNED + 1, _LEARNED + 1 + _PILED)
    assert machine.trims == [n for n in range(40) if n not in trial]


def test_it_stops_where_passes_use_the_same_memory_again() -> None:
    machine = Machine(once=50 * MB, more=5 * MB)
    machine.run(40)
    assert machine.trims == list(range(_LEARNED + 1))


def test_it_is_tried_again() -> None:
    machine = Machine(once=50 * MB, more=0)
    machine.run(2 * _HOLDS)
    assert len(machine.trims) == _LEARNED + 2


@pytest.mark.parametrize(
    ("saved_bytes", "trims"), [(MB, 0), (32 * MB, 0), (ALWAYS_BYTES, 30), (8 * ALWAYS_BYTES, 30)]
)
def test_little_is_left_alone_and_much_is_given_back(saved_bytes: int, trims: int) -> None:
    machine = Machine(once=50 * MB, more=0)
    machine.run(30, saved_bytes)
    assert len(machine.trims) == trims
