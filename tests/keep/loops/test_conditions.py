"""A step that is made again finds what it found the first time, and leaves it as it was."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad

import elbowroom as er
from elbowroom.keep import Encoding
from elbowroom.keep.loops.names import Reach
from elbowroom.keep.loops.statistics import Statistics

from .steps import plain

WAYS: dict[str, dict[str, Any]] = {
    "slots": {"slots": 2},
    "online": {"slots": 2, "schedule": "online"},
    "budget": {"memory": 230_000},
    "encoded": {"store": Encoding(relative=1e-6)},
}


def network(*, norm: bool = False, width: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    between = [nn.BatchNorm1d(width)] if norm else []
    return nn.Sequential(nn.Linear(width, width), *between, nn.Tanh())


@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("is_cached", [True, False])
def test_autocast(is_inside: bool, is_cached: bool) -> None:
    model = network(width=64)
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def gradients(run: Any) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            # What was cast before the loop is in autocast's cache.
            before = model(x).float().sum() if is_cached else torch.zeros(())
            total = run().float().square().sum() + before
            if is_inside:
                return list(grad(total, (x, *model.parameters())))
        return list(grad(total, (x, *model.parameters())))

    expected = gradients(lambda: plain(model, x, 10))
    found = gradients(lambda: er.loop(model, x, 10, slots=3))
    assert is_cached or torch.equal(expected[0], found[0])
    for one, other in zip(expected, found, strict=True):
        # What is cast once for several uses, autocast adds up in bfloat16.
        assert (one - other).norm() < 0.02 * one.norm()


def test_what_a_loop_casts_is_not_left_to_others() -> None:
    model, x = network(), torch.ones(2, 8)
    with torch.autocast("cpu", torch.bfloat16):
        er.loop(lambda s, n: model(s) if n > 1 else s * 1.0, x, 5, parameters=model, slots=2)
        total = model(x).float().sum()
    total.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_an_autocast_that_is_switched_on_later_changes_nothing() -> None:
    model, x = network(), torch.randn(3, 8).requires_grad_()
    found: list[Tensor] = []
    for total in (plain(model, x, 9).sum(), er.loop(model, x, 9, slots=2).sum()):
        with torch.autocast("cpu", torch.bfloat16):
            found += grad(total, x)
    assert torch.equal(*found)


@pytest.mark.parametrize("how", WAYS)
def test_random_numbers_of_a_second_backward(how: str) -> None:
    x = torch.linspace(0.5, 1, 4000).requires_grad_()
    total = er.loop(
        lambda s: torch.sin(nn.functional.dropout(1.5 * s, 0.1)), x, 6, **WAYS[how]
    ).sum()
    (first,) = grad(total, x, retain_graph=True)
    torch.rand(7)
    (second,) = grad(total, x)
    assert torch.allclose(first, second, rtol=1e-3, atol=1e-4)


def test_random_numbers_of_second_derivatives() -> None:
    x = torch.linspace(0.5, 1, 30, dtype=torch.float64).requires_grad_()

    def product(run: Any) -> tuple[Tensor, Tensor]:
        torch.manual_seed(1)
        (first,) = grad(run().sum(), x, create_graph=True)
        (second,) = grad(first.square().sum(), x)
        return second, torch.rand(3)

    step = lambda s: nn.functional.dropout(torch.sin(s) + 0.1 * s * s, 0.3)  # noqa: E731
    expected, drawn = product(lambda: plain(step, x, 8))
    found, after = product(lambda: er.loop(step, x, 8, slots=2))
    assert torch.allclose(expected, found) and torch.equal(drawn, after)


@dataclass
class Holder:
    """A step that keeps its module to itself."""

    model: nn.Module

    def step(self, state: Tensor) -> Tensor:
        """Make one."""
        return self.model(state)


def steps_of(model: nn.Module) -> dict[str, Any]:
    """Ways in which a step may get hold of a module that it is not."""

    def inner(state: Tensor) -> Tensor:
        return model(state)

    return {
        "closure": inner,
        "function in a function": lambda s: 1.0 * inner(s),
        "argument": partial(lambda net, s: net(s), model),
        "method of another": Holder(model).step,
        "list": lambda s, models=[model]: models[0](s),
    }


@pytest.mark.parametrize("kind", list(steps_of(network())))
@pytest.mark.parametrize("how", ["slots", "online", "budget"])
def test_running_statistics_of_modules_that_a_step_only_uses(kind: str, how: str) -> None:
    model, other = network(norm=True), network(norm=True)
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    plain(model, x, 9).sum().backward()
    options: dict[str, Any] = {**WAYS[how], "parameters": list(other.parameters())}
    er.loop(steps_of(other)[kind], x, 9, **options).sum().backward()
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize("is_frozen", [True, False])
def test_parameters_that_are_given_for_one_call(is_frozen: bool) -> None:
    class Model(nn.Module):
        def __init__(self, **options: Any) -> None:
            super().__init__()
            self.inner = network(norm=True).double()
            self.table = nn.Buffer(torch.ones(8, dtype=torch.float64))
            self.run = er.Loop(self.step, **options)

        def step(self, state: Tensor) -> Tensor:
            return self.inner(state) * self.table

        def forward(self, state: Tensor) -> Tensor:
            return self.run(state, 7)

    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ways: list[dict[str, Any]] = [{}, {"slots": 2}]
    found: list[list[Tensor]] = []
    for options in ways:
        model = Model(**options).requires_grad_(not is_frozen)
        kept = {name: value.clone() for name, value in model.state_dict().items()}
        given = {name: 1.5 * value.detach() for name, value in model.named_parameters()}
        given = {name: value.requires_grad_() for name, value in given.items()}
        members = {**given, "table": 0.9 * model.table}
        total = torch.func.functional_call(model, members, (x,)).pow(3).sum()
        first = grad(total, list(given.values()), create_graph=True)
        squares = torch.stack([g.square().sum() for g in first])
        second = grad(squares.sum(), list(given.values()))
        found.append([*first, *second])
        for name, value in model.named_parameters():
            assert value is not given[name] and torch.equal(value, kept[name])
        assert torch.equal(model.table, kept["table"])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-7, atol=1e-7)


def test_modules_that_are_switched_to_evaluation_before_backward() -> None:
    model = nn.Sequential(network(norm=True), nn.Dropout(0.2))
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    found: list[Tensor] = []
    for run in (lambda: plain(model, x, 7), lambda: er.loop(model, x, 7, slots=2)):
        torch.manual_seed(0)
        total = run().square().sum()
        model.eval()
        found += grad(total, x)
        assert not any(module.training for module in model.modules())
        model.train()
    assert torch.equal(*found)


def test_running_statistics_in_second_derivatives() -> None:
    model, other = network(norm=True).double(), network(norm=True).double()
    x = torch.randn(5, 8, dtype=torch.float64).requires_grad_()

    def product(score: Tensor) -> Tensor:
        (first,) = grad(score, x, create_graph=True)
        return grad(first.square().sum(), x)[0]

    expected = product(plain(model, x, 7).pow(3).sum())
    found = product(er.loop(other, x, 7, slots=2).pow(3).sum())
    assert torch.allclose(expected, found, rtol=1e-9, atol=1e-12)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_a_large_constant_is_not_copied() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Buffer(torch.ones(1 << 19))
            self.changed = nn.Buffer(torch.zeros(1 << 19))

        def forward(self, state: Tensor) -> Tensor:
            self.changed += 1
            return state * self.table[0]

    table = Table()
    statistics = Statistics(b for m in Reach(lambda s: 2 * table(s)).modules for b in m.buffers())
    copies = statistics.copy()
    assert len(copies) == 2
    table(torch.ones(3))
    statistics.restore(copies)
    assert float(table.changed.sum()) == 0
    statistics.settle()
    assert [buffer is table.changed for buffer, _, _ in statistics.copy()] == [True]
