"""Spreading error: the tolerance is kept, and not spent where it buys little."""

from dataclasses import replace

import numpy as np
import pytest

from elbowroom.keep.activations.allocation import GRID, Demand, allocate, bits


def make_demand(seed: int, cost: float, count: int = 100_000, largest: float = np.inf) -> Demand:
    sample = np.random.default_rng(seed).standard_normal(4096).astype(np.float32)
    return Demand(count=count, scale=1.0, sample=sample, cost=cost, largest=largest)


DEMANDS = [make_demand(0, 1.0), make_demand(1, 30.0), make_demand(2, 0.01, 1_000_000)]


def spent(bounds: list[float]) -> float:
    return sum(d.cost * b**2 for d, b in zip(DEMANDS, bounds, strict=True))


def bits_at(bounds: list[float]) -> float:
    """By the curves that the allocation itself goes by, between the points of their grid."""
    return sum(float(np.interp(b, GRID, bits(d))) for d, b in zip(DEMANDS, bounds, strict=True))


@pytest.mark.parametrize("tolerance", [1.0, 0.1, 0.001])
def test_the_tolerance_is_kept_and_spent(tolerance: float) -> None:
    bounds = allocate(DEMANDS, tolerance)
    assert 0.8 * tolerance < spent(bounds) <= tolerance * (1 + 1e-9)


def test_dear_tensors_get_tighter_bounds() -> None:
    first, dear, cheap = allocate(DEMANDS, 0.1)
    assert dear < first < cheap


def test_a_floor_leaves_some_of_the_tolerance() -> None:
    spend = [
        spent(allocate(DEMANDS, 0.1, floor=floor, goal_bits=np.inf)) for floor in (0, 1e7, 1e8)
    ]
    assert spend[0] > 2 * spend[1] > 4 * spend[2] > 0


def test_a_goal_for_the_bytes_comes_before_the_floor() -> None:
    tight = allocate(DEMANDS, 0.1, floor=1e8, goal_bits=np.inf)
    goal_bits = 0.8 * bits_at(tight)
    bounds = allocate(DEMANDS, 0.1, floor=1e8, goal_bits=goal_bits)
    assert 0.9 * goal_bits < bits_at(bounds) <= 1.01 * goal_bits
    assert spent(tight) < spent(bounds) <= 0.1


def test_the_tolerance_comes_before_the_goal() -> None:
    bounds = allocate(DEMANDS, 1e-4, floor=1e8, goal_bits=0.0)
    assert spent(bounds) <= 1e-4 * (1 + 1e-9)


def test_no_bound_is_looser_than_its_largest() -> None:
    bounds = allocate([make_demand(0, 1e-6, largest=0.01), make_demand(1, 1.0)], 0.1)
    assert bounds[0] <= 0.01


def test_bits_are_those_that_were_seen() -> None:
    plain = make_demand(0, 1.0)
    place = 30
    seen = replace(plain, known=(float(GRID[place]), 0.6 * float(bits(plain)[place])))
    assert np.allclose(bits(seen), 0.6 * bits(plain))
    # A blob that says nothing of the kind: of a few values, mostly its header.
    odd = replace(plain, known=(float(GRID[place]), 100 * float(bits(plain)[place])))
    assert np.allclose(bits(odd), 2 * bits(plain))


def test_nothing_to_spread() -> None:
    assert allocate([], 0.1) == []
