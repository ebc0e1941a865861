"""The least cost of one option each under a peak, beside all there is."""

import itertools
import math

import numpy as np
import pytest

from elbowroom.solve import Group, Task, fastest, lowest


def some_task(seed: int, *, items: int = 6, options: int = 3, groups: int = 2) -> Task:
    generator = np.random.default_rng(seed)
    stretches = 8
    costs = np.sort(generator.random((items, options)), axis=1)
    costs[:, 0] = 0
    loads = np.zeros((items, options, stretches))
    for item in range(items):
        first, last = sorted(generator.integers(0, stretches, 2))
        sizes = np.sort(generator.random(options))[::-1] * 100
        loads[item, :, first : last + 1] = sizes[:, None]
    found: list[Group] = []
    for members in np.array_split(np.arange(items), max(1, groups))[:groups]:
        load = np.zeros(stretches)
        load[generator.integers(stretches)] = 40
        chosen = tuple(int(i) for i in members)
        found.append(Group(members=chosen, cost=float(generator.random()), load=load))
    rest = generator.random(stretches) * 30
    return Task(rest=rest, costs=costs, loads=loads, groups=tuple(found))


def outcome(task: Task, options: tuple[int, ...], replaced: tuple[int, ...]) -> tuple[float, float]:
    """Cost and peak by the definition."""
    cost, load = 0.0, task.rest.copy()
    hidden = {i for number in replaced for i in task.groups[number].members}
    for number in replaced:
        cost += task.groups[number].cost
        load += task.groups[number].load
    for item, option in enumerate(options):
        if item not in hidden:
            cost += task.costs[item, option]
            load += task.loads[item, option]
    return cost, float(load.max())


def everything(task: Task) -> list[tuple[float, float]]:
    items, options = task.costs.shape
    numbers = range(len(task.groups))
    subsets = [s for n in range(len(numbers) + 1) for s in itertools.combinations(numbers, n)]
    return [
        outcome(task, way, replaced)
        for way in itertools.product(range(options), repeat=items)
        for replaced in subsets
    ]


@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("seed", range(6))
def test_it_is_within_the_limit_and_near_the_best(seed: int, groups: int) -> None:
    task = some_task(seed, groups=groups)
    ways = everything(task)
    least = min(peak for _, peak in ways)
    assert lowest(task).peak == pytest.approx(least, rel=0.02)
    costs: list[float] = []
    for share in (0.05, 0.2, 0.5, 0.8):
        most = outcome(task, (0,) * len(task.costs), ())[1]
        limit = least * 1.02 + share * (most - least)
        found = fastest(task, limit)
        assert found is not None
        options = tuple(int(k) for k in found.options)
        assert outcome(task, options, tuple(found.replaced)) == pytest.approx(
            (found.cost, found.peak)
        )
        assert found.peak <= limit
        best = min(cost for cost, peak in ways if peak <= limit)
        costs.append(found.cost / best if best > 0 else 1.0)
    assert np.mean(costs) < 1.06


def test_nothing_below_the_lowest_peak() -> None:
    task = some_task(3)
    assert fastest(task, 0.99 * lowest(task).peak) is None


def test_what_costs_nothing_is_taken_where_it_fits() -> None:
    task = some_task(4)
    found = fastest(task, 1e9)
    assert found is not None and found.cost == 0 and not found.replaced


def test_options_that_are_not_there_are_never_taken() -> None:
    task = some_task(5, groups=0)
    task.costs[:, 2] = math.inf
    assert (lowest(task).options < 2).all()


def test_no_items_at_all() -> None:
    task = Task(rest=np.array([3.0]), costs=np.zeros((0, 2)), loads=np.zeros((0, 2, 1)))
    assert lowest(task).peak == 3
    assert fastest(task, 2) is None
    found = fastest(task, 4)
    assert found is not None and found.cost == 0
