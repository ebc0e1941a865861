"""Slots that hold states or tapes: the fewest steps, and the same bits."""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import grad

import elbowroom as er
from elbowroom.errors import InvalidArgument
from elbowroom.keep.loops.mixed import actions_of, fewest_steps

from .steps import Cell, plain, start


@cache
def fewest(length: int, slots: int) -> int:
    """By the recursion itself, every choice tried."""
    slots = min(slots, length - 1)
    if length <= slots + 1:
        return length
    if slots == 1:
        return length * (length + 1) // 2 - 1
    states = (i + fewest(i, slots) + fewest(length - i, slots - 1) for i in range(2, length))
    return min(1 + fewest(length - 1, slots - 1), *states)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 60), st.integers(1, 12))
def test_schedules_make_the_fewest_steps(length: int, slots: int) -> None:
    made, at, held, states = 0, 0, set[int](), set[int]()
    left = list(range(length))
    for action in actions_of(length, slots):
        if action.start in states and action.act in ("advance", "tape", "reverse", "free"):
            at = action.start
        if action.act == "keep":
            states.add(at)
        elif action.act == "free":
            states.remove(action.start)
        elif action.act == "take":
            held.remove(action.start)
            assert left.pop() == action.start
        else:
            assert at == action.start
            made += action.end - action.start
            at = action.end
            if action.act == "tape":
                held.add(action.start)
            elif action.act == "reverse":
                assert left.pop() == action.start
        assert len(held) + len(states) <= max(1, slots)
    assert not left and not held and not states
    assert made == fewest_steps(length, slots) == fewest(length, slots)


def test_counts_of_the_literature() -> None:
    assert fewest_steps(1000, 10) - 1000 == 2921
    assert fewest_steps(1000, 30) - 1000 == 1522


@pytest.mark.parametrize("slots", [1, 3, 9, 40])
def test_the_same_bits(slots: int) -> None:
    cell, x = Cell(), start()
    expected = grad(plain(cell, x, 25).square().sum(), (x, *cell.parameters()))
    total = er.loop(cell, x, 25, slots=slots, schedule="mixed").square().sum()
    for _ in range(2):  # a second backward makes everything again
        found = grad(total, (x, *cell.parameters()), retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_outputs_inputs_and_random_numbers() -> None:
    inputs = torch.randn(17, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def step(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        after = torch.nn.functional.dropout(torch.sin(state + x), 0.2)
        return after, after

    found: list[tuple[Any, ...]] = []
    options: dict[str, Any]
    for options in ({}, {"slots": 4, "schedule": "mixed"}):
        torch.manual_seed(0)
        last, all_of_them = er.loop(step, torch.ones(4), inputs=inputs, outputs=True, **options)
        found.append(
            (*grad((all_of_them.square() * 0.7).sum() + last.sum(), inputs), torch.rand(2))
        )
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_what_does_not_go_together() -> None:
    with pytest.raises(InvalidArgument, match="tapes stay in memory"):
        er.Loop(Cell(), slots=(2, 3), schedule="mixed")
    with pytest.raises(InvalidArgument, match="steps times slots"):
        er.loop(Cell(), start(), 10**6, slots=10, schedule="mixed")


def test_a_budget_takes_tapes_where_they_are_no_larger_than_states() -> None:
    knob = torch.tensor(0.9, requires_grad=True)
    loop = er.Loop(lambda x: x * knob, parameters=knob, memory=1_500_000)
    x = torch.ones(10_000)
    total = loop(x, 400).sum()
    assert loop.plan is not None and loop.plan.kind == "replay" and loop.plan.schedule == "mixed"
    (found,) = grad(total, knob)
    (expected,) = grad(plain(lambda x: x * knob, x, 400).sum(), knob)
    assert torch.equal(found, expected)
