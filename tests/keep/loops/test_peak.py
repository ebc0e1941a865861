"""The process itself: memory does not grow with the length of a loop, and a budget is kept."""

import os
import subprocess
import sys
from typing import Any

import pytest

RUN = """
import sys
import torch
import elbowroom as er
from elbowroom.keep.activations.gauge import Process

torch.set_num_threads(1)
steps, options = int(sys.argv[1]), eval(sys.argv[2])
points = 1 << 20
at = torch.arange(points, dtype=torch.float64)
train = (torch.sin(at / 40) * torch.exp(-((at / points - 0.5) / 0.1) ** 2)).float()
speed = torch.full((points,), 0.3).requires_grad_()

def step(state):
    now, before = state
    curve = torch.roll(now, 1) - 2 * now + torch.roll(now, -1)
    return 2 * now - before + speed * curve, now

def run(steps, **options):
    after = er.loop(step, (train, train.clone()), steps, parameters=speed, **options)
    is_second = sys.argv[3] == "2"
    (first,) = torch.autograd.grad(after[0].square().sum(), speed, create_graph=is_second)
    if is_second:
        torch.autograd.grad((first * train).sum(), speed)

run(2)  # what is loaded once, and what one step takes
gauge = Process()
gauge.reset()
before = gauge.now()
run(steps, **options)
print(gauge.peak() - before)
"""

STATE = 2 * 4 << 20  # bytes of both fields


def peak_bytes(steps: int, order: int = 1, **options: Any) -> int:
    ours = ("ELBOWROOM_", "MALLOC_", "GLIBC_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(steps), repr(options), str(order)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the process's peak is told by Linux")
@pytest.mark.parametrize("options", [{"slots": 4}, {"slots": (1, 5)}, {"memory": "200 MB"}])
def test_memory_does_not_grow_with_the_steps(options: dict[str, Any]) -> None:
    short, long = peak_bytes(20, **options), peak_bytes(80, **options)
    assert long < 1.25 * short + 3 * STATE
    assert long < 80 * 4 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="the process's peak is told by Linux")
@pytest.mark.parametrize("tolerance", [0.0, 0.01])
def test_a_budget_is_kept(tolerance: float) -> None:
    assert peak_bytes(80, memory=240_000_000, tolerance=tolerance) < 240_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="the process's peak is told by Linux")
def test_the_second_order_does_not_come_on_top_of_the_first() -> None:
    assert peak_bytes(60, order=2, memory=400_000_000) < 400_000_000
