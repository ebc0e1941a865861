"""What a loop keeps goes with its results, whether or not backward has come."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

import elbowroom as er

MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "slots": {"slots": 5},
    "mixed": {"slots": 5, "schedule": "mixed"},
    "memory": {"memory": "300 kB"},
    "encoded": {"store": "encoded", "tolerance": 0.01},
}


def step(state: Tensor, factor: Tensor) -> Tensor:
    """A node that saves its own result, and one that saves its operands."""
    return torch.tanh(state * factor)


@pytest.mark.parametrize("goes_back", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_no_tensors_stay(mode: str, goes_back: bool) -> None:
    factor = torch.full((4000,), 0.9, requires_grad=True)

    def run() -> int:
        result = er.loop(
            lambda x: step(x, factor), torch.rand(4000), 40, parameters=factor, **MODES[mode]
        )
        if goes_back:
            result.sum().backward()
            factor.grad = None
        del result
        gc.collect()
        return sum(issubclass(type(each), Tensor) for each in gc.get_objects())

    run()
    assert len({run() for _ in range(3)}) == 1
