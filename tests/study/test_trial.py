"""One cell: the same for the same seed, a loss that is not finite told, the gradient's error."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from elbowroom.science.task import Task
from elbowroom.study.cells import Cell
from elbowroom.study.fixed import FixedRoom
from elbowroom.study.networks import find_network
from elbowroom.study.probe import measure_error
from elbowroom.study.treatments import Treatment, fixed, room, smaller
from elbowroom.study.trial import run_cell

NETWORK = "cms-perceptron"


@pytest.fixture(scope="module")
def task() -> Task:
    return find_network(NETWORK).make_task()


def run(task: Task, treatment: Treatment, *, seed: int = 0, steps: int = 12) -> dict[str, Any]:
    return run_cell(Cell(network=NETWORK, treatment=treatment, seed=seed, steps=steps), task=task)


def test_the_outcome_follows_from_the_settings(task: Task) -> None:
    timed = ("step_s",)
    plain = run(task, Treatment())
    again = run(task, Treatment())
    other = run(task, Treatment(), seed=1)
    assert {k: v for k, v in plain.items() if k not in timed} == {
        k: v for k, v in again.items() if k not in timed
    }
    assert plain["value"] != other["value"]
    assert plain["state"] == "finished" and plain["ratio"] is None and plain["step_s"] > 0


def test_an_exact_room_learns_the_same(task: Task) -> None:
    plain, exact = run(task, Treatment()), run(task, room(0.0))
    assert exact["value"] == plain["value"] and exact["loss"] == plain["loss"]
    assert exact["ratio"] > 1


def test_a_smaller_batch_is_smaller(task: Task) -> None:
    drawn: list[int] = []

    def draw(samples: int, generator: torch.Generator) -> Any:
        drawn.append(samples)
        return task.draw(samples, generator)

    outcome = run(replace(task, draw=draw), smaller(0.25), steps=2)
    assert drawn[:2] == [32, 32]
    assert outcome["ratio"] == 4.0 and outcome["gradient_error"] is None


def test_a_loss_that_is_not_finite_is_an_outcome(task: Task) -> None:
    def draw(samples: int, generator: torch.Generator) -> Any:
        inputs, labels = task.draw(samples, generator)
        return inputs * math.nan, labels

    outcome = run(replace(task, draw=draw), fixed("linear", "range", 0.1))
    assert outcome["state"] == "diverged" and outcome["diverged_at"] == 0
    assert outcome["loss"] is None and outcome["ratio"] is None


def test_the_gradient_suffers_more_from_a_wider_bound(task: Task) -> None:
    recipe = find_network(NETWORK)
    torch.manual_seed(0)
    network = recipe.make_network(task)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    errors = [
        measure_error(
            network,
            task,
            lambda twin, bound=bound: FixedRoom(twin, fixed("linear", "range", bound)),
            batch=128,
        )
        for bound in (1e-6, 0.02, 0.2)
    ]
    assert errors[0] is not None and errors[1] is not None and errors[2] is not None
    assert errors[0] < 1e-6 < errors[1] < 0.2 * errors[2]
    # Looking on changes nothing, running statistics included.
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
