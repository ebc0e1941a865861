"""Steps that use torch.func: forces, inner gradients, batches."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad

import elbowroom as er

WAYS: list[dict[str, Any]] = [
    {"slots": 4},
    {"memory": 60_000},
    {"memory": "10 MB"},
    {"memory": "10 MB", "tolerance": 0.01},
    {"store": "encoded", "tolerance": 0.01},
]


@pytest.mark.filterwarnings("ignore:the loop keeps all:elbowroom.keep.LoopWarning")
@pytest.mark.parametrize("options", WAYS)
def test_forces_of_molecules(options: dict[str, Any]) -> None:
    stiffness = torch.tensor(1.0, requires_grad=True)
    places = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))

    def energy(at: Tensor) -> Tensor:
        squared = (at[:, None] - at[None]).square().sum(-1) + torch.eye(8)
        return stiffness * (1 / squared).triu(1).sum()

    def step(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        at, speed = state
        speed = speed - 0.01 * torch.func.grad(energy)(at)
        return at + 0.01 * speed, speed

    def gradient(**options: Any) -> Tensor:
        start = places, torch.zeros(8, 3)
        at, _ = er.loop(step, start, 40, parameters=stiffness, **options)
        return grad(at.square().sum(), stiffness)[0]

    assert torch.equal(gradient(**options), gradient())


@pytest.mark.filterwarnings("ignore:the loop keeps all:elbowroom.keep.LoopWarning")
@pytest.mark.parametrize("options", WAYS)
def test_learning_inside_of_a_step(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.linspace(-1, 1, 20)[:, None]

    def error(weights: dict[str, Tensor]) -> Tensor:
        found = torch.func.functional_call(model, weights, (x,))
        return (found - torch.sin(3 * x)).square().mean()

    def learn(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        slopes = torch.func.grad(error)(weights)
        return {name: weights[name] - 0.1 * slopes[name] for name in weights}

    def gradient(**options: Any) -> tuple[Tensor, ...]:
        first = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
        return grad(error(er.loop(learn, first, 20, **options)), list(first.values()))

    for one, other in zip(gradient(**options), gradient(), strict=True):
        assert torch.equal(one, other)
