"""What comes out of a loop, and how long what was kept for its gradient stays."""

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.keep import Encoding

from .steps import Cell, start

WAYS: dict[str, dict[str, Any]] = {
    "two slots": {"slots": 2},
    "online": {"slots": 4, "schedule": "online"},
    "budget": {"memory": 20_000},
    "nothing": {},
}


def gradients(score: Tensor, *tensors: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(score, tensors))


@pytest.mark.parametrize("how", ["two slots", "online", "budget", "nothing"])
def test_results_may_be_changed_in_place(how: str) -> None:
    x = torch.ones(30, requires_grad=True)
    after, seen = er.loop(lambda s: (torch.sin(s), s * 2), x, 5, outputs=True, **WAYS[how])
    (expected,) = gradients(2 * after.sum() + 3 * seen.sum(), x)
    after, seen = er.loop(lambda s: (torch.sin(s), s * 2), x, 5, outputs=True, **WAYS[how])
    after.mul_(2)
    seen.mul_(3)
    assert torch.allclose(gradients(after.sum() + seen.sum(), x)[0], expected)


def test_a_limit_that_is_never_reached_takes_no_memory() -> None:
    x = torch.zeros(3, requires_grad=True)
    for options in (WAYS["two slots"], WAYS["nothing"]):
        for is_on in (True, False):
            with torch.set_grad_enabled(is_on):
                after, seen = er.loop(
                    lambda s: (s + 1, s),
                    x,
                    10**13,
                    until=lambda s: s[0] > 5,
                    outputs=True,
                    **options,
                )
            assert seen.shape == (6, 3) and after.tolist() == [6, 6, 6]


@pytest.mark.parametrize(
    "options", [{"slots": 4}, {"slots": 4, "store": "disk"}, {"store": Encoding(relative=1e-3)}]
)
def test_what_was_kept_goes_with_the_results(options: dict[str, Any]) -> None:
    loop = er.Loop(torch.sin, **options)
    after = loop(torch.ones(5000, requires_grad=True), 30)
    assert loop.engine is not None and loop.engine.held_bytes > 0
    del after
    gc.collect()
    assert loop.engine.held_bytes == 0


def test_a_copy_of_a_loop_is_without_what_was_kept() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = Cell()
            self.run = er.Loop(self.cell, slots=3)

    model, x = Model(), start()
    after = model.run(x, 9)
    other = copy.deepcopy(model)
    assert other.run.engine is None and model.run.engine is not None
    with torch.no_grad():
        other.cell.weight.zero_()
    assert not torch.equal(other.run(x, 9), after)
    assert torch.equal(model.run(x, 9), after)


def test_a_plan_is_made_once() -> None:
    x = start(width=8)

    class Counted(Cell):
        called = 0

        def forward(self, state: Tensor) -> Tensor:
            Counted.called += 1
            return super().forward(state)

    loop = er.Loop(Counted(width=8), memory=12_000)
    counts = []
    for state in (x, x, x[:2]):
        Counted.called = 0
        loop(state, 300)
        assert loop.plan is not None and loop.plan.kind == "replay"
        counts.append(Counted.called)
    assert counts[0] > counts[1] == 300 and counts[2] == counts[0]
