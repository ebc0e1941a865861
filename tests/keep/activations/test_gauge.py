"""How much memory is in use, and what the kernel is told about pages where it is short."""

import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import elbowroom as er
from elbowroom.keep.activations.gauge import Lean

SCRIPT = """
import ctypes, sys
from pathlib import Path
from elbowroom.keep.activations.gauge import use_fewer_large_pages
for name in sys.argv[1:]:
    told = use_fewer_large_pages(Path(name))
    print(told, ctypes.CDLL(None).prctl(42, 0, 0, 0, 0))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are told of by Linux")
def test_large_pages_are_refused_where_they_are_for_anything(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("none", "never", "asked", "always")]
    files[1].write_text("always madvise [never]")
    files[2].write_text("always [madvise] never")
    files[3].write_text("[always] madvise never")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, files)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "0"] * 3 + ["True", "1"]


def watchers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "elbowroom-gauge"]


@pytest.mark.parametrize("is_closed", [True, False])
def test_nobody_watches_for_a_room_that_is_closed_or_gone(
    is_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elbowroom.keep.activations.gauge.share_arena", lambda: None)
    before = set(watchers())
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 8))
    room = er.Activations(model, memory="16 GB", meter=0)
    with room:
        loss = model(torch.randn(256, 64)).sum()
    loss.backward()
    mine = set(watchers()) - before
    assert mine
    if is_closed:
        room.close()
    else:
        del room, loss, model
        gc.collect()
    for thread in mine:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in mine)


class Beside:
    """An arena that only listens."""

    def __init__(self) -> None:
        self.caps: list[int] = []
        self.needed = self.most = 0

    def cap(self, nbytes: int) -> "Beside":
        self.caps.append(nbytes)
        return self

    def lift(self) -> None:
        self.caps.pop()

    def purge(self) -> None:
        self.most = 0

    def need_bytes(self) -> int:
        return self.needed

    def take_peak_bytes(self) -> int:
        most, self.most = self.most, 0
        return most


def test_what_is_free_in_the_arena_does_not_count() -> None:
    arena: Any = Beside()
    gauge = Lean(arena, 1 << 50)
    assert arena.caps == []  # nothing has begun
    gauge.wake()
    gauge.wake()
    assert arena.caps == [1 << 50]
    gauge.reset()
    arena.needed, arena.most = 5, 9
    assert (gauge.now(), gauge.peak(), gauge.peak()) == (5, 9, 5)
    gauge.rest()
    assert arena.caps == []


def test_records_above_the_cap_are_believed() -> None:
    """What has grown between two looks of the arena is known to the kernel alone."""
    arena: Any = Beside()
    gauge = Lean(arena, 1)
    ever = gauge.peak()
    assert ever > 1 << 20  # this process has been larger than a byte
    gauge.reset()
    arena.needed = 7
    assert gauge.peak() == 7
