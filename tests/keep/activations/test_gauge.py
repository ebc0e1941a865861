"""What the kernel is told about pages where memory is short."""

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import elbowroom as er

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
def test_nobody_watches_for_a_room_that_is_closed_or_gone(is_closed: bool) -> None:
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
