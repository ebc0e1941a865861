"""Large tensors in memory of their own: used again, given back, and nobody else's business."""

import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is one on Linux only")

MB = 1 << 20


def run(code: str, *, prefix: tuple[str, ...] = (), **more: str) -> list[str]:
    """In a process of its own: an arena is for good."""
    ours = ("MALLOC_", "GLIBC", "THP_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    done = subprocess.run(
        [*prefix, sys.executable, "-c", code],
        env=environment | more,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.split()


START = """
import torch
from elbowroom.arena import share_arena
MB = 1 << 20
def ones(mb):
    return torch.ones(mb << 18)
before = ones(3)
arena = share_arena()
"""


def test_large_tensors_lie_in_it_and_small_ones_do_not() -> None:
    found = run(
        START
        + """
small, large = torch.ones(1 << 10), ones(8)
print(arena.counts().live_bytes // MB)
del small, large, before
print(arena.counts().live_bytes // MB, arena.counts().free_bytes // MB)
"""
    )
    assert found == ["8", "0", "8"]


def test_memory_is_used_again_without_a_fault() -> None:
    found = run(
        START
        + """
import resource
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step():
    for mb in (48, 16, 24):
        ones(mb).sum()
step()
count = faults()
for _ in range(8):
    arena.begin_pass(slack=1 / 16)
    step()
print(faults() - count)
"""
    )
    assert int(found[0]) < 60


def test_the_process_stays_as_small_as_its_largest_moment() -> None:
    """Sizes that do not fit into each other's places: holes go back to the system."""
    found = run(
        START
        + """
import random
from elbowroom.host import resident_bytes
dice = random.Random(0)
base, most = resident_bytes(), 0
arena.begin_pass(slack=0)
held, live = [], 0
for _ in range(300):
    held.append(ones(dice.randint(1, 12)))
    while sum(t.nbytes for t in held) > 60 * MB:
        held.pop(dice.randrange(len(held)))
    most = max(most, resident_bytes() - base)
print(most // MB, arena.counts().returned_bytes // MB)
"""
    )
    most, returned = map(int, found)
    assert 50 <= most <= 60 + 12 + 8
    assert returned > 0


def test_values_stay_what_they_are_whoever_frees_last() -> None:
    found = run(
        START
        + """
inside = ones(5)
arena.close()
outside = ones(5)
print(int(before.sum()) == 3 << 18, int(inside.sum()) == 5 << 18, int(outside.sum()) == 5 << 18)
again = share_arena()
print(again.counts().live_bytes // MB)
del inside, before, outside
print(again.counts().live_bytes // MB)
again.close()
print(again.counts().free_bytes)
"""
    )
    assert found == ["True", "True", "True", "5", "0", "0"]


def test_what_is_freed_after_everybody_has_left_goes_back() -> None:
    found = run(
        START
        + """
inside = ones(64)
arena.close()
del inside
print(arena.counts().free_bytes, arena.counts().live_bytes)
"""
    )
    assert found == ["0", "0"]


def test_a_share_ends_with_its_holder() -> None:
    found = run(
        START
        + """
kept = share_arena()
del arena
a = ones(4)
print(kept.counts().live_bytes // MB)
other = kept._library
del kept
b = ones(4)
from elbowroom.arena import Arena
print(share_arena().counts().live_bytes // MB)
"""
    )
    assert found == ["4", "4"]


def test_under_a_cap_the_process_stays_below_it_whoever_grows() -> None:
    """Tensors, and memory beside the arena that nobody tells it of."""
    found = run(
        START
        + """
import mmap, threading
from elbowroom.host import resident_bytes
base = resident_bytes()
first, second = arena.cap(base + 400 * MB), arena.cap(base + 100 * MB)
for mb in (60, 70, 80):
    ones(mb)
print(arena.counts().free_bytes >= 80 * MB, resident_bytes() <= base + 100 * MB)
def grow():
    beside = mmap.mmap(-1, 90 * MB)
    for place in range(0, 90 * MB, 4096):
        beside[place] = 1
    return beside
beside = grow()
returned = threading.Event()
while resident_bytes() > base + 104 * MB:
    returned.wait(0.01)
print(arena.counts().free_bytes < 20 * MB, arena.need_bytes() >= base + 85 * MB)
beside.close()
second.lift()
for mb in (60, 70, 80):
    ones(mb)
print(arena.counts().free_bytes >= 80 * MB)
""",
        THP_MEM_ALLOC_ENABLE="0",
    )
    assert found == ["True"] * 5


def test_what_is_needed_is_told_without_what_is_free() -> None:
    found = run(
        START
        + """
base = arena.need_bytes()
arena.take_peak_bytes()
ones(40)
print((arena.take_peak_bytes() - base) // MB in range(38, 44))
print((arena.need_bytes() - base) // MB in range(-2, 4))
arena.take_peak_bytes()
x = ones(30)
print((arena.need_bytes() - base) // MB in range(28, 34), arena.take_peak_bytes() > base)
"""
    )
    assert found == ["True"] * 4


def test_a_cap_holds_in_children_too() -> None:
    found = run(
        START
        + """
import os
cap = arena.cap(1 << 40)
child = os.fork()
if child == 0:
    torch.set_num_threads(1)
    mine = arena.cap(arena.need_bytes() + 50 * MB)
    for mb in (30, 35, 40):
        torch.empty(mb << 18).fill_(1)
    os._exit(0 if arena.counts().free_bytes <= 50 * MB else 1)
print(os.waitpid(child, 0)[1])
"""
    )
    assert found == ["0"]


def test_more_than_the_machine_has_is_left_to_torch() -> None:
    """Which refuses it, unless the system promises everything to everybody."""
    found = run(
        """
import os, torch
from elbowroom.arena import share_arena
def is_refused():
    try:
        torch.empty(3 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), dtype=torch.uint8)
    except RuntimeError as error:
        return "memory" in str(error)
    return False
before = is_refused()
arena = share_arena()
print(is_refused() == before, arena.counts().live_bytes)
"""
    )
    assert found == ["True", "0"]


def test_children_and_threads_have_theirs() -> None:
    found = run(
        START
        + """
import os, threading
from elbowroom.host import resident_bytes
stop = threading.Event()
def churn():
    while not stop.is_set():
        torch.empty(1 << 20)
threads = [threading.Thread(target=churn) for _ in range(3)]
for thread in threads:
    thread.start()
mine = ones(32)
for _ in range(20):
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        arena.begin_pass(slack=0)
        more = [torch.empty(8 << 18).fill_(k) for k in range(4)]
        fine = all(float(t[0]) == k == float(t[-1]) for k, t in enumerate(more))
        need = arena.counts().peak_need_bytes
        os._exit(0 if fine and need < resident_bytes() + 64 * MB else 1)
    print(os.waitpid(child, 0)[1])
stop.set()
for thread in threads:
    thread.join()
print(int(mine.sum()) == 32 << 18)
"""
    )
    assert found == [*["0"] * 20, "True"]


def test_oned_nn_may_free_what_it_got_before() -> None:
    """Its tensors ask for the allocator anew when they are freed."""
    found = run(
        START
        + """
conv = torch.nn.Conv2d(16, 16, 3)
x = torch.randn(8, 16, 128, 128)
old = x.to_mkldnn()
y = conv(x)
blocked = x.to_mkldnn()
arena.close()
del old, blocked
lstm = torch.nn.LSTM(64, 64)
z = lstm(torch.randn(100, 32, 64))[0].sum()
z.backward()
print("fine")
"""
    )
    assert found == ["fine"]


def test_the_profiler_sees_it() -> None:
    found = run(
        START
        + """
from torch.profiler import profile
with profile(profile_memory=True) as seen:
    x = ones(16)
print(max(e.cpu_memory_usage for e in seen.key_averages()) // MB)
"""
    )
    assert found == ["16"]


ASK = "from elbowroom.arena import share_arena\nprint(share_arena() is not None)"


@pytest.mark.parametrize(
    ("more", "prefix"),
    [
        ({"MALLOC_MMAP_THRESHOLD_": "1048576"}, ()),
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"}, ()),
        ({}, ("sh", "-c", 'ulimit -v 30000000; exec "$0" "$@"')),
        ({}, ("sh", "-c", 'ulimit -d 30000000; exec "$0" "$@"')),
    ],
)
def test_there_is_none_where_the_user_has_decided(more: Any, prefix: tuple[str, ...]) -> None:
    assert run(ASK) == ["True"]
    assert run(ASK, prefix=prefix, **more) == ["False"]
