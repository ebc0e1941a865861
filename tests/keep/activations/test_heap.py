"""Holes of the heap are given back where that is worth its page faults."""

import ctypes
import sys

import pytest

from elbowroom.host import allocated_bytes
from elbowroom.keep.activations.heap import _LEARNED, ALWAYS_BYTES, Heap

MB = 1 << 20


class Machine:
    """A heap of which each pass leaves some resident: so much at first, and more on top of it."""

    def __init__(self, once: int, more: int) -> None:
        self._once, self._more = once, more
        self.resident = 100 * MB
        self.trims: list[int] = []
        self.passes = 0
        self._since = 0
        self.allocated: int | None = 60 * MB
        self.heap = Heap(lambda: self.resident, self._trim, lambda: self.allocated)

    def _trim(self) -> None:
        self.trims.append(self.passes)
        self.resident, self._since = 100 * MB, 0

    def run(self, count: int, saved_bytes: int = 200 * MB) -> None:
        for _ in range(count):
            self.heap.before_pass(saved_bytes)
            self.resident += self._more if self._since else self._once
            self._since += 1
            self.passes += 1


def test_holes_are_given_back_as_they_grow() -> None:
    machine = Machine(once=100 * MB, more=20 * MB)
    machine.run(40)
    # The first pass says what one takes; three more make 60 MB of holes.
    assert machine.trims == [*range(_LEARNED), *range(_LEARNED, 40, 4)]


def test_where_passes_use_the_same_memory_again_nothing_is_given_back() -> None:
    machine = Machine(once=50 * MB, more=0)
    machine.run(400)
    assert machine.trims == list(range(_LEARNED + 1))


@pytest.mark.parametrize(("saved_bytes", "most"), [(100 * MB, 25 * MB), (400 * MB, 100 * MB)])
def test_holes_stay_below_a_part_of_what_compression_saves(saved_bytes: int, most: int) -> None:
    machine = Machine(once=400 * MB, more=5 * MB)  # most of it is not holes
    largest = 0
    for _ in range(200):
        machine.run(1, saved_bytes)
        largest = max(largest, machine.resident)
    assert 500 * MB + most - 10 * MB <= largest <= 500 * MB + most + 10 * MB


@pytest.mark.parametrize(
    ("saved_bytes", "trims"), [(MB, 0), (32 * MB, 0), (ALWAYS_BYTES, 30), (8 * ALWAYS_BYTES, 30)]
)
def test_little_is_left_alone_and_much_is_given_back(saved_bytes: int, trims: int) -> None:
    machine = Machine(once=50 * MB, more=0)
    machine.run(30, saved_bytes)
    assert len(machine.trims) == trims


def test_holes_are_given_back_within_a_large_pass() -> None:
    machine = Machine(once=0, more=0)
    machine.heap.before_pass(ALWAYS_BYTES)
    assert machine.heap.is_large
    machine.trims = []
    machine.allocated, machine.resident = 360 * MB, 400 * MB
    machine.heap.within_pass(64 * MB)  # all of it is in use
    assert not machine.trims
    machine.allocated = 340 * MB
    machine.heap.within_pass(64 * MB)
    assert not machine.trims
    machine.allocated = 100 * MB
    machine.heap.within_pass(MB)  # too small for a look
    assert not machine.trims
    machine.heap.within_pass(64 * MB)
    assert len(machine.trims) == 1


def test_a_first_pass_may_turn_out_to_be_large() -> None:
    machine = Machine(once=0, more=0)
    machine.heap.before_pass(0)
    for _ in range(7):
        machine.heap.note_saved(64 * MB)
    assert not machine.heap.is_large
    assert not machine.trims
    machine.heap.note_saved(64 * MB)
    assert machine.heap.is_large
    assert len(machine.trims) == 1
    machine.resident += ALWAYS_BYTES // 16
    machine.heap.note_saved(64 * MB)
    assert len(machine.trims) == 2
    machine.heap.before_pass(MB)
    assert not machine.heap.is_large


@pytest.mark.parametrize(("nbytes", "most"), [(8 * MB, 1 / 4), (64 * MB, 1 / 24)])
def test_holes_may_be_larger_where_much_is_given_back(nbytes: int, most: float) -> None:
    """Unless tensors are so large that plain training gets them page by page as well."""
    machine = Machine(once=0, more=0)
    for _ in range(20):
        machine.heap.before_pass(ALWAYS_BYTES)
        for _ in range(60):
            machine.resident = 100 * MB + 2 * ALWAYS_BYTES
            machine.heap.within_pass(nbytes)
    machine.heap.before_pass(ALWAYS_BYTES)
    machine.trims = []
    for share, is_trimmed in ((0.9 * most, False), (1.1 * most, True)):
        machine.resident = 100 * MB + int(share * ALWAYS_BYTES)
        machine.heap.within_pass(nbytes)
        assert bool(machine.trims) == is_trimmed


@pytest.mark.parametrize("saved_bytes", [200 * MB, MB])
def test_other_passes_are_left_alone(saved_bytes: int) -> None:
    machine = Machine(once=0, more=0)
    machine.run(1, ALWAYS_BYTES)
    machine.run(1, saved_bytes)
    assert not machine.heap.is_large
    machine.trims, machine.resident, machine.allocated = [], 4000 * MB, 0
    machine.heap.within_pass(64 * MB)
    assert not machine.trims


def test_a_library_that_tells_nothing() -> None:
    machine = Machine(once=0, more=0)
    machine.allocated = None
    machine.heap.before_pass(ALWAYS_BYTES)
    machine.heap.within_pass(64 * MB)
    assert len(machine.trims) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="glibc tells what it has handed out")
def test_what_is_allocated_is_told() -> None:
    before = allocated_bytes()
    if before is None:
        pytest.skip("this C library does not tell")
    # Not of torch, whose tensors lie in the arena while there is a room anywhere.
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    held = library.malloc(64 * MB)
    after = allocated_bytes()
    library.free(held)
    assert after is not None
    assert after - before >= 64 * MB
