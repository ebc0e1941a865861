"""The peak of the process, without a budget: below that of plain training, step after step."""

import os
import subprocess
import sys

import pytest

TRAIN = """
import sys
import torch
from torch import nn
import elbowroom as er
from elbowroom.host import trim_heap
from elbowroom.keep.activations.gauge import Process

torch.manual_seed(0)
torch.set_num_threads(2)
blocks = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
          for _ in range(10)]
network = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.Conv2d(16, 1, 1))
optimizer = torch.optim.SGD(network.parameters(), 1e-3)

def step(batch, room=None):
    x = torch.randn(batch, 3, 64, 64)
    if room is None:
        loss = network(x).square().mean()
    else:
        with room:
            loss = network(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

step(1)
trim_heap()
gauge = Process()
gauge.reset()
base = gauge.now()
room = er.Activations(network, meter=0, overhead=None) if sys.argv[1] == "room" else None
peaks = []
for number in range(12):
    step(32, room)
    if number == 3:
        gauge.reset()
print(gauge.peak() - base)
"""


def peak_bytes(how: str) -> int:
    ours = ("MALLOC_", "GLIBC", "THP_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, how],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the process's peak is told by Linux")
def test_the_process_takes_less_than_plainly() -> None:
    # Half to nine tenths, as holes in the heap fall; without a look at them, half as much again.
    assert peak_bytes("room") < peak_bytes("plain")
