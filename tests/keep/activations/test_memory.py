"""Where tensors of passes lie: the arena is told of passes and of what is written beside it."""

import gc
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import elbowroom as er
from elbowroom.arena import Arena, share_arena
from elbowroom.keep.activations.heap import ALWAYS_BYTES, Heap
from elbowroom.keep.activations.memory import Pages, memory_of

MB = 1 << 20


class Calls:
    """An arena that only listens."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def begin_pass(self, *, slack: float, cap_bytes: int = 0) -> None:
        self.seen.append(slack)

    def settle(self) -> None:
        self.seen.append("settle")

    def purge(self) -> None:
        self.seen.append("purge")


def pages() -> tuple[Pages, list[Any]]:
    calls: Any = Calls()
    return Pages(calls), calls.seen


def test_blobs_are_followed_as_they_add_up() -> None:
    found, seen = pages()
    for _ in range(40):
        found.note_saved(MB)
    assert seen == ["settle", "settle"]
    found.note_saved(100 * MB)
    assert seen == ["settle"] * 3


def test_large_passes_have_less_to_spare_and_are_known_from_the_first_on() -> None:
    found, seen = pages()
    found.note_saved(ALWAYS_BYTES - 1)
    assert not found.is_large
    found.note_saved(1)
    assert found.is_large
    found.before_pass(ALWAYS_BYTES)
    assert found.is_large
    found.before_pass(ALWAYS_BYTES - 1)
    assert not found.is_large
    large, small = (each for each in seen if each != "settle")
    assert 0 < large < small <= 0.25
    found.rest()
    assert seen[-1] == "purge"


@pytest.mark.skipif(sys.platform != "linux", reason="there is an arena on Linux only")
def test_rooms_share_the_arena_and_leave_it_empty() -> None:
    network = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
    room = er.Activations(network, meter=0)
    assert isinstance(room._memory, Pages)
    watcher = share_arena()
    assert isinstance(watcher, Arena)

    def step(around: er.Activations) -> None:
        with around:
            loss = network(torch.randn(2048, 512)).square().mean()
        loss.backward()

    for _ in range(3):
        step(room)
    assert watcher.counts().free_bytes > 4 * MB
    room.close()
    assert watcher.counts().free_bytes == 0
    del room
    gc.collect()


def test_without_an_arena_the_heap_serves(monkeypatch: Any) -> None:
    monkeypatch.setattr("elbowroom.keep.activations.memory.share_arena", lambda: None)
    monkeypatch.setattr("elbowroom.keep.activations.memory.recycle_memory", lambda: True)
    assert isinstance(memory_of(nn.Linear(2, 2)), Heap)
    monkeypatch.setattr("elbowroom.keep.activations.memory.recycle_memory", lambda: False)
    assert memory_of(nn.Linear(2, 2)) is None
    assert memory_of(nn.Linear(2, 2, device="meta")) is None


SMALL_BATCH = """
import sys
import torch
from torch import nn
import elbowroom as er
from elbowroom.host import trim_heap
from elbowroom.keep.activations.gauge import Process

torch.manual_seed(0)
torch.set_num_threads(2)
layers = [nn.Conv2d(3, 32, 3, padding=1)]
for _ in range(8):
    layers += [nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)]
network = nn.Sequential(*layers)
room = torch.enable_grad()
if sys.argv[1] == "room":
    room = er.Activations(network, meter=0, overhead=None)
gauge = Process()

def step(batch):
    with room:
        loss = network(torch.randn(batch, 3, 64, 64)).square().mean()
    loss.backward()
    network.zero_grad()

step(1)
trim_heap()
base = gauge.now()
for number in range(6):
    gauge.reset()
    step(40)
print(gauge.peak() - base)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the process's peak is told by Linux")
def test_small_passes_have_a_small_peak_too() -> None:
    """Plainly 17 tensors of 21 MB wait; in a room four are at work, beside the codec."""

    def peak(which: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", SMALL_BATCH, which], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert peak("room") < peak("plain") / 1.7
