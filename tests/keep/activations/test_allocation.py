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


def make_limits(seed: int, limits: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.lognormal(0, 3, (len(DEMANDS), limits)) * (
        generator.random((len(DEMANDS), limits)) < 0.7
    )


def least_bits(each: np.ndarray, tolerance: float) -> float:
    """Of all bounds of the grid that keep every limit."""
    squares = (GRID**2)[:, None]
    taken = [bits(d) for d in DEMANDS]
    best = np.inf
    for place in range(GRID.size):
        error = DEMANDS[0].cost * squares[place] + DEMANDS[1].cost * squares
        used = each[0] * squares[place] + each[1] * squares
        for last in range(GRID.size):
            is_within = (error[:, 0] + DEMANDS[2].cost * squares[last] <= tolerance) & (
                used + each[2] * squares[last] <= 1
            ).all(1)
            if is_within.any():
                found = taken[0][place] + taken[1][is_within].min() + taken[2][last]
                best = min(best, float(found))
    return best


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("limits", [1, 4])
def test_every_limit_is_kept_at_nearly_the_fewest_bits(seed: int, limits: int) -> None:
    each = make_limits(seed, limits)
    bounds = allocate(DEMANDS, 0.1, each=each)
    assert spent(bounds) <= 0.1 * (1 + 1e-9)
    assert (np.square(bounds) @ each).max() <= 1 + 1e-9
    # A grid of quarter octaves, and a bit each for what is left of the limits.
    assert bits_at(bounds) <= 1.03 * least_bits(each, 0.1)


def test_limits_that_hold_anyway_change_nothing() -> None:
    each = np.full((3, 2), 1e-6)
    assert allocate(DEMANDS, 0.1, each=each) == allocate(DEMANDS, 0.1)


def test_the_floor_does_not_count_while_more_is_held() -> None:
    """The price never falls below that of the tolerance, nor below the goal's."""
    bounds = allocate(DEMANDS, 0.1, floor=1e12, goal_bits=0.0)
    assert bounds == allocate(DEMANDS, 0.1)


def test_zeros_are_a_code_of_their_own() -> None:
    values = np.random.default_rng(3).standard_normal(4096).astype(np.float32)
    half = values.copy()
    half[::2] = 0
    dense, sparse = (
        Demand(count=1, scale=1.0, sample=sample, cost=1.0) for sample in (values, half)
    )
    # One bit for which is zero, and half of the others' bits, at every bound of the grid that is
    # finer than the values: without the code dither would spread zeros over two codes.
    place = int(np.argmin(np.abs(GRID - 1.0)))
    expected = 1 + bits(dense)[place] / 2
    assert bits(sparse)[place] == pytest.approx(expected, abs=0.12)
