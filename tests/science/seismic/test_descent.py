"""Ways down: exact on parabolas, within bounds, undeterred by a bad start."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from elbowroom.science.seismic.descent import Box, Newton, Point, Quasi, Score, descend, solve


def bowl(size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A matrix that is symmetric and positive, and a vector."""
    drawn = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=drawn, dtype=torch.float64)
    return root @ root.T + torch.eye(size), torch.randn(size, generator=drawn, dtype=torch.float64)


def box(size: int, low: float = -100.0, high: float = 100.0) -> Box:
    return Box(low=torch.full((size,), low).double(), high=torch.full((size,), high).double())


def run(score: Score, x: Tensor, within: Box, way: Quasi | Newton, iterations: int) -> Point:
    value, gradient = score(x)
    point = Point(x=x, value=value, gradient=gradient)
    for _ in range(iterations):
        lower = descend(score, point, within, way)
        if lower is None:
            break
        assert lower.value < point.value
        point = lower
    return point


def rosenbrock(x: Tensor) -> tuple[float, Tensor]:
    x = x.detach().requires_grad_()
    value = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
    return value.item(), torch.autograd.grad(value, x)[0]


def curvature(x: Tensor, v: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    value = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    return torch.autograd.grad(gradient, x, v)[0]


@given(st.integers(1, 8), st.integers(0, 5))
def test_conjugate_gradients_solve(size: int, seed: int) -> None:
    matrix, right = bowl(size, seed)
    x = solve(lambda v: matrix @ v, right, most=4 * size, enough=1e-12, damping=0.0)
    assert x is not None
    torch.testing.assert_close(matrix @ x, right, rtol=1e-6, atol=1e-8)


def test_negative_curvature_ends_it() -> None:
    right = torch.tensor([1.0, 1.0])
    assert solve(lambda v: -v, right, most=5, enough=0.0, damping=0.0) is None
    mixed = torch.tensor([1.0, -0.5])
    x = solve(lambda v: mixed * v, right, most=5, enough=0.0, damping=0.0)
    assert x is not None and float(x @ right) > 0


@pytest.mark.parametrize("method", ["quasi", "newton"])
def test_the_bottom_of_a_bent_valley(method: str) -> None:
    start = torch.tensor([-1.2, 1.0, -1.2, 1.0], dtype=torch.float64)
    way = (
        Quasi(first_step=0.1)
        if method == "quasi"
        else Newton(curvature, first_step=0.1, damping=0.0)
    )
    found = run(rosenbrock, start, box(4), way, 150)
    assert found.value < 1e-8 or off_saddle(found)


def off_saddle(point: Point) -> bool:
    """The valley of four has a second bottom."""
    return float(point.gradient.norm()) < 1e-4


@pytest.mark.parametrize("method", ["quasi", "newton"])
def test_bounds_are_kept_and_fixed_values_stay(method: str) -> None:
    matrix, right = bowl(6)

    def score(x: Tensor) -> tuple[float, Tensor]:
        return float(0.5 * x @ matrix @ x - right @ x), matrix @ x - right

    within = box(6, -0.1, 0.1)
    within.low[2] = within.high[2] = 0.05
    start = within.clamp(torch.zeros(6, dtype=torch.float64))
    way = (
        Quasi(first_step=0.1)
        if method == "quasi"
        else Newton(lambda _, v: matrix @ v, first_step=0.1, inner=20, damping=0.0)
    )
    found = run(score, start, within, way, 60)
    assert bool((found.x >= within.low).all() & (found.x <= within.high).all())
    assert float(found.x[2]) == 0.05
    # Karush, Kuhn and Tucker: what is free has no gradient left.
    assert float((found.gradient * within.free(found.x, found.gradient)).abs().max()) < 1e-3


def test_nowhere_to_go() -> None:
    start = torch.zeros(3, dtype=torch.float64)
    point = Point(x=start, value=0.0, gradient=torch.zeros_like(start))
    assert descend(rosenbrock, point, box(3), Quasi(first_step=0.1)) is None
