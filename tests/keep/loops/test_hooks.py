"""Hooks on gradients are called as in a plain loop."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad

import elbowroom as er
from elbowroom.keep import Encoding

from .steps import plain

WAYS: dict[str, dict[str, Any]] = {
    "slots": {"slots": 2},
    "budget": {"memory": 200_000},
    "encoded": {"store": Encoding(relative=1e-6)},
}


@pytest.mark.parametrize("how", WAYS)
def test_a_hook_sees_the_whole_gradient_once(how: str) -> None:
    weight = torch.full((3000,), 0.9).requires_grad_()
    seen: list[Tensor] = []

    def clip(g: Tensor) -> Tensor:
        seen.append(g)
        return g.clamp(-0.5, 0.5) * 2

    weight.register_hook(clip)
    step = lambda s: torch.sin(s * weight)  # noqa: E731
    (expected,) = grad(plain(step, torch.ones(3000), 9).sum(), weight)
    (found,) = grad(
        er.loop(step, torch.ones(3000), 9, parameters=weight, **WAYS[how]).sum(), weight
    )
    assert len(seen) == 2
    assert torch.allclose(seen[0], seen[1], rtol=1e-4)
    assert torch.allclose(expected, found, rtol=1e-4)


@pytest.mark.parametrize("how", WAYS)
def test_a_gradient_that_is_retained(how: str) -> None:
    speed = torch.full((3000,), 0.9).requires_grad_()
    retained: list[Tensor] = []
    for is_plain in (True, False):
        squared = speed**2
        squared.retain_grad()
        step = lambda s, k=squared: torch.sin(s * k)  # noqa: E731
        x = torch.ones(3000)
        if is_plain:
            after = plain(step, x, 9)
        else:
            after = er.loop(step, x, 9, parameters=squared, **WAYS[how])
        after.sum().backward()
        assert squared.grad is not None
        retained.append(squared.grad)
    assert torch.allclose(*retained, rtol=1e-4)


def test_hooks_in_second_derivatives() -> None:
    weight = torch.linspace(0.5, 1, 20, dtype=torch.float64).requires_grad_()
    weight.register_hook(lambda g: 3 * g)
    step = lambda s: torch.sin(s * weight)  # noqa: E731
    x = torch.ones(20, dtype=torch.float64)

    def product(run: Any) -> Tensor:
        (first,) = grad(run().sum(), weight, create_graph=True)
        return grad(first.square().sum(), weight)[0]

    expected = product(lambda: plain(step, x, 7))
    found = product(lambda: er.loop(step, x, 7, parameters=weight, slots=2))
    assert torch.allclose(expected, found, rtol=1e-10)
