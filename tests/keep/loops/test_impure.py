"""Steps that depend on more than their arguments: right, or an error that names them."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad

import elbowroom as er
from elbowroom.errors import InvalidArgument

from .steps import plain

Step = Callable[[Tensor], Tensor]

REPLAYED: list[dict[str, Any]] = [{"slots": 4}, {"slots": 4, "schedule": "online"}, {"slots": 30}]
TAPED: dict[str, Any] = {"memory": "10 MB"}
STEPS = 30


class Carrier:
    """A step with a memory of its own, through which no gradient flows."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.before = weight, torch.zeros(20)

    def step(self, state: Tensor) -> Tensor:
        """Make one."""
        self.before = 0.5 * self.before + state.detach()
        return torch.sin(state * self.weight) + 0.1 * self.before


def make(kind: str, weight: Tensor) -> Step:
    """A fresh step of its kind."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    counted, called = [0], 0
    own, other = torch.Generator().manual_seed(0), np.random.default_rng(0)
    numbers = itertools.count()

    def follow(state: Tensor, more: float | Tensor) -> Tensor:
        return torch.sin(state * weight) + 0.1 * more

    def count(state: Tensor) -> Tensor:
        counted[0] += 1
        return follow(state, counted[0] % 3)

    def rebind(state: Tensor) -> Tensor:
        nonlocal called
        called += 1
        return follow(state, called % 3)

    steps: dict[str, Step] = {
        "counted": count,
        "called": rebind,
        "numpy's random numbers": lambda s: follow(s, float(np.random.rand())),  # noqa: NPY002
        "Python's random numbers": lambda s: follow(s, random.random()),
        "own": lambda s: follow(s, torch.rand(20, generator=own)),
        "other": lambda s: follow(s, other.random()),
        "Carrier.before": Carrier(weight).step,
        "an iterator": lambda s: follow(s, next(numbers) % 5),
    }
    return steps[kind]


KINDS = (
    "counted",
    "called",
    "numpy's random numbers",
    "Python's random numbers",
    "own",
    "other",
    "Carrier.before",
    "an iterator",
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_gives_another_state_when_it_is_made_again(kind: str) -> None:
    weight, x = torch.linspace(0.5, 1.5, 20).requires_grad_(), torch.linspace(0, 1, 20)
    for options in REPLAYED:
        step = make(kind, weight)
        total = er.loop(step, x, STEPS, parameters=weight, **options).sum()
        with pytest.raises(InvalidArgument, match=rf"step \d+ gave another state.*{kind}"):
            total.backward()


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_steps_that_are_made_once_may_do_so(kind: str) -> None:
    weight, x = torch.linspace(0.5, 1.5, 20).requires_grad_(), torch.linspace(0, 1, 20)
    expected = grad(plain(make(kind, weight), x, STEPS).sum(), weight)
    found = grad(er.loop(make(kind, weight), x, STEPS, parameters=weight, **TAPED).sum(), weight)
    assert torch.equal(*expected, *found)


def test_a_step_that_only_writes_down_what_it_does() -> None:
    weight, seen, written = torch.tensor(0.9, requires_grad=True), [], torch.zeros(STEPS)

    def step(state: Tensor, number: int) -> Tensor:
        seen.append(number)
        written[number] = state.detach().sum()
        return torch.sin(state * weight)

    for options in [*REPLAYED, TAPED]:
        er.loop(step, torch.ones(3), STEPS, parameters=weight, **options).sum().backward()


@pytest.mark.parametrize("options", [*REPLAYED, TAPED, {"memory": 12_000}])
def test_names_that_are_bound_anew_before_backward(options: dict[str, Any]) -> None:
    weight, x = torch.linspace(0.5, 1.5, 20).requires_grad_(), torch.linspace(0, 1, 20)

    def gradient(**options: Any) -> Tensor:
        total = torch.zeros(())
        for place in (3, 9, 15):
            shot = torch.zeros(20)
            shot[place] = 1.0

            def step(state: Tensor) -> Tensor:
                return torch.sin(state * weight) + shot  # noqa: B023

            total = total + er.loop(step, x, STEPS, parameters=weight, **options).square().sum()
        shot = torch.ones(20)
        return grad(total, weight)[0]

    assert torch.allclose(gradient(**options), gradient(), rtol=1e-5)


@pytest.mark.parametrize("options", [*REPLAYED, {"memory": 12_000}])
def test_a_tensor_that_is_changed_in_place_before_backward(options: dict[str, Any]) -> None:
    weight, mask = torch.linspace(0.5, 1.5, 20).requires_grad_(), torch.ones(20)
    step = lambda s: torch.sin(s * weight * mask)  # noqa: E731
    total = er.loop(step, torch.ones(20), STEPS, parameters=weight, **options).sum()
    mask[3] = 0.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


class RunningMean(nn.Module):
    """Reads and writes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.mean = nn.Buffer(torch.zeros(8))

    def forward(self, state: Tensor) -> Tensor:
        """One step."""
        self.mean.mul_(0.9).add_(0.1 * state.detach().mean(0))
        return torch.tanh(self.inner(state - self.mean)) + state


def moving(kind: str) -> nn.Module:
    """A module whose buffers change from step to step, and are read."""
    torch.manual_seed(0)
    if kind == "mean":
        return RunningMean()
    inner = nn.Linear(8, 8)
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(inner), nn.Tanh())


@pytest.mark.parametrize("kind", ["mean", "spectral norm"])
@pytest.mark.parametrize("options", [*REPLAYED, TAPED, {"memory": 40_000}])
def test_buffers_that_steps_read_and_write(kind: str, options: dict[str, Any]) -> None:
    found: list[list[Tensor]] = []
    for chosen in ({}, options):
        model, x = moving(kind), torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
        er.loop(model, x, STEPS, parameters=model, **chosen).square().sum().backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
        found[-1] += list(model.buffers())
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("options", [{}, *REPLAYED, TAPED])
def test_buffers_that_graphs_before_the_loop_have_saved(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8).eval())
    model.append(nn.Module())
    model[-1].register_buffer("table", torch.ones(1).expand(8))
    model[-1].forward = lambda state: torch.tanh(state) * model[-1].table  # pyright: ignore
    er.loop(model, model(torch.randn(4, 8)), 12, **options).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
