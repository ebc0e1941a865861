"""A hundred random networks in every run of the tests; `./dev soak --only networks` draws more."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elbowroom.keep.activations import derive, policy
from tests.keep.activations import random_networks as networks
from tests.keep.activations.random_networks import NAMES, Network, Plan, fault, report


@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(networks.draw_any(st))
def test_networks_train_as_without_a_room(plan: Plan) -> None:
    found = fault(plan)
    assert found is None, f"{found}\n  {plan}"


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_long_networks_too(first: int) -> None:
    for seed, found in report([f"test {number}" for number in range(first, first + 10)]):
        pytest.fail(f"network {seed!r}: {found}")


def test_every_step_is_drawn_and_runs() -> None:
    """None is there for nothing: each suits one of the shapes that networks begin with."""
    assert len(NAMES) > 120
    left = [
        name
        for name in NAMES
        if not any(
            name in Network(Plan(axes, ((name, 0),), "square")).names for axes in networks.SHAPES
        )
    ]
    assert left == []


def test_plans_repeat() -> None:
    plan = Plan.draw("7")
    assert plan == Plan.draw("7") != Plan.draw("8")
    one, two = (networks.train(Network(plan), None)[-1].results for _ in range(2))
    assert networks.same_bits(one, two)


def test_other_bits_are_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A derivation that is off by one bit, of which the trial in forward is not told."""
    made = derive.Derived.make

    def off(derived: derive.Derived) -> torch.Tensor:
        found = made(derived)
        return found if torch._C._current_graph_task_id() == -1 else found * (1 + 2**-22)

    monkeypatch.setattr(derive.Derived, "make", off)
    plan = Plan(3, (("tanh", 0), ("mlp", 0), ("sine", 0)), "square")
    few, why = networks.smallest(plan)
    assert few.steps == (("mlp", 0),)
    assert "other bits" in why


def test_errors_too_large_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "spread", lambda sample: 100.0)
    assert "squared error" in str(fault(Plan(3, (("mlp", 0), ("attention", 0)), "square")))
