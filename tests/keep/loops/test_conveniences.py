"""What users of other packages expect of a loop."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad
from torch.autograd.functional import jacobian

import elbowroom as er
from elbowroom.errors import InvalidArgument
from elbowroom.keep import LoopWarning

from .steps import Cell, plain, start

WAYS: list[dict[str, Any]] = [{}, {"slots": 3}, {"memory": "1 MB"}]


@dataclass
class Field:
    """A field with its name and grid."""

    values: Tensor
    name: str
    spacing_m: float


@pytest.mark.parametrize("options", WAYS)
def test_fields_of_a_state_that_are_no_tensors(options: dict[str, Any]) -> None:
    x = start()

    def step(field: Field) -> Field:
        return Field(torch.sin(field.values * field.spacing_m), field.name, field.spacing_m)

    after = er.loop(step, Field(x, "pressure", 0.9), 12, **options)
    assert after.name == "pressure" and after.spacing_m == 0.9
    expected = grad(plain(lambda s: torch.sin(s * 0.9), x, 12).sum(), x)
    assert torch.equal(*grad(after.values.sum(), x), *expected)


def test_fields_that_a_step_changes() -> None:
    def step(state: dict[str, Any]) -> dict[str, Any]:
        return {"x": state["x"].sin(), "t": state["t"] + 0.5}

    with pytest.raises(InvalidArgument, match=r"\['t'\] is no tensor.* from 0.0 to 0.5: make it a"):
        er.loop(step, {"x": torch.ones(3, requires_grad=True), "t": 0.0}, 9, slots=2)


def test_the_right_side_of_a_differential_equation() -> None:
    with pytest.raises(InvalidArgument, match=r"this one is f\(t, y\).*lambda y, n: y \+ dt \* f"):
        er.loop(lambda t, y: -y, torch.ones(3), 9)


@pytest.mark.parametrize("options", WAYS)
def test_modules_that_a_step_names(options: dict[str, Any]) -> None:
    cell, x = Cell(), start()
    expected = grad(plain(cell, x, 12).sum(), list(cell.parameters()))
    er.loop(lambda s: 1.0 * cell(s), x, 12, **options).sum().backward()
    for parameter, other in zip(cell.parameters(), expected, strict=True):
        assert parameter.grad is not None and torch.equal(parameter.grad, other)


@pytest.mark.parametrize("options", [*WAYS, {"slots": 3, "schedule": "mixed"}])
def test_all_rows_of_a_jacobian_at_once(options: dict[str, Any]) -> None:
    def run(x: Tensor) -> Tensor:
        return er.loop(lambda s: torch.sin(s * 0.9) + 0.1 * s.sum(), x, 10, **options)

    x = torch.linspace(0, 1, 4)
    assert torch.allclose(jacobian(run, x, vectorize=True), jacobian(run, x))


def test_a_report() -> None:
    loop = er.Loop(Cell(), slots=4)
    assert loop.report is None
    total = loop(start(), 20).sum()
    before = loop.report
    assert before is not None and before.kind == "replay" and before.steps == before.made == 20
    assert before.held_bytes == 4 * start().nbytes
    total.backward()
    after = loop.report
    assert after is not None and after.made > 20 and after.held_bytes == 0
    assert "20 steps" in str(after)
    loop = er.Loop(Cell())
    loop(start(), 3)
    assert str(loop.report) == "a plain loop: no bound was asked for"


def test_a_tolerance_alone_bounds_nothing() -> None:
    with pytest.warns(LoopWarning, match="add memory= or store='encoded'"):
        er.loop(Cell(), start(), 5, tolerance=0.01)


def test_a_single_call_has_the_probe_too() -> None:
    knob = torch.full((64, 64), 1.5, requires_grad=True)
    x = torch.linspace(0.1, 1, 64 * 64).view(64, 64)

    def step(state: Tensor) -> Tensor:  # a chaotic one: errors of its history grow
        return torch.sin(3 * knob * state)

    total = er.loop(step, x, 24, parameters=knob, store="encoded", tolerance=1e-4).square().sum()
    with pytest.warns(LoopWarning, match="with an er.Loop"):
        total.backward()
