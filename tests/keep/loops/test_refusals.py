"""What a loop cannot do right is refused in one sentence."""

import resource
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.errors import BudgetUnreachable, InvalidArgument
from elbowroom.keep import Encoding, LinearCoder, LoopWarning

from .steps import Cell, plain, start

BOUNDED: list[dict[str, Any]] = [{"slots": 2}, {"memory": "1 MB"}, {"memory": 60_000}]


@pytest.mark.parametrize("options", BOUNDED)
@pytest.mark.parametrize("wants", [True, False])
def test_a_forgotten_parameter(options: dict[str, Any], wants: bool) -> None:
    k = torch.tensor(0.5, requires_grad=True)
    x = torch.ones(700, requires_grad=wants)
    with pytest.raises(InvalidArgument, match=r"uses k, a tensor .* pass parameters=\(k,\)"):
        er.loop(lambda s: s * k, x, 100, **options)
    er.loop(lambda s: s * k, x, 100, parameters=(k,), **options).sum().backward()
    assert k.grad is not None
    er.loop(lambda s: s * k.detach(), x, 100, **options)


def test_a_forgotten_module_in_a_function() -> None:
    cell = Cell()
    cells = {"one": cell}
    with pytest.raises(InvalidArgument, match=r"requires gradients, and does not get it"):
        er.loop(lambda s: 1.0 * cells["one"](s), start(), 9, slots=2)
    er.loop(partial(lambda model, s: model(s), cell), start(), 9, slots=2).sum().backward()
    assert cell.weight.grad is not None


def test_a_tensor_computed_before_the_loop() -> None:
    speed = torch.tensor(0.5, requires_grad=True)
    squared = speed**2
    with pytest.raises(InvalidArgument, match=r"computed before the loop .* name that very tensor"):
        er.loop(lambda s: s * squared, torch.ones(3), 9, parameters=speed, slots=2)
    er.loop(lambda s: s * squared, torch.ones(3), 9, parameters=squared, slots=2).sum().backward()
    assert speed.grad is not None and torch.allclose(speed.grad, 3 * 18 * speed.detach() ** 17)


@pytest.mark.parametrize(
    "options",
    [{"slots": 2}, {"slots": 2, "schedule": "online"}, {"store": Encoding(relative=1e-3)}],
)
def test_a_parameter_that_only_a_later_step_uses(options: dict[str, Any]) -> None:
    k = torch.tensor(0.5, requires_grad=True)
    squared = k * k
    x = torch.ones(4000, requires_grad=True)

    def late(other: Tensor) -> Any:
        return lambda s, n: torch.sin(s) * other if n > 3 else torch.sin(s)

    with pytest.raises(InvalidArgument, match=r"uses other, .* pass parameters=\(other,\)"):
        er.loop(late(k), x, 9, **options).sum().backward()
    with pytest.raises(InvalidArgument, match="name that very tensor"):
        er.loop(late(squared), x, 9, parameters=k, **options).sum().backward()
    er.loop(late(k), x, 9, parameters=k, **options).sum().backward()


@pytest.mark.parametrize("options", [{"slots": 2}, {"memory": 9000}])
def test_a_state_or_input_that_a_step_uses_behind_its_back(options: dict[str, Any]) -> None:
    x = torch.linspace(0.1, 1, 5).requires_grad_()
    with pytest.raises(InvalidArgument, match=r"uses x, .* pass parameters=\(x,\)"):
        er.loop(lambda s: torch.sin(s) + x, x, 90, **options)
    after = er.loop(lambda s: torch.sin(s) + x, x, 90, parameters=x, **options)
    (found,) = torch.autograd.grad(after.sum(), x)
    (expected,) = torch.autograd.grad(plain(lambda s: torch.sin(s) + x, x, 90).sum(), x)
    assert torch.allclose(found, expected)
    force = torch.ones(90, 5, requires_grad=True)
    with pytest.raises(InvalidArgument, match="uses force"):
        er.loop(lambda s, f: torch.sin(s) + f + force[0], x, inputs=force, **options)


@pytest.mark.parametrize("options", BOUNDED)
def test_inputs_and_parameters_that_a_step_changes(options: dict[str, Any]) -> None:
    x, force = torch.ones(700, requires_grad=True), torch.ones(100, 700)
    with pytest.raises(InvalidArgument, match="changes its input in place"):
        er.loop(lambda s, f: s * f.mul_(2), x, inputs=force, **options)
    assert torch.equal(force, torch.ones(100, 700))
    k = torch.ones(1, requires_grad=True)

    def step(state: Tensor) -> Tensor:
        with torch.no_grad():
            k.mul_(1.1)
        return state + k

    with pytest.raises(InvalidArgument, match="changes one of its parameters in place"):
        er.loop(step, x, 100, parameters=k, **options)


def test_parameters_of_which_one_was_computed_from_another() -> None:
    speed = torch.tensor(0.5, requires_grad=True)
    other = speed * 1.0
    third = other + 1
    with pytest.raises(InvalidArgument, match="computed from another"):
        er.loop(lambda s: s * other + third, torch.ones(3), 9, parameters=(other, third), slots=2)


def test_a_method_of_a_module_is_known() -> None:
    class Model(Cell):
        def advance(self, state: Tensor) -> Tensor:
            return self(state)

    model = Model()
    er.loop(model.advance, start(), 9, slots=2).sum().backward()
    assert model.weight.grad is not None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"slots": 0}, "slots must be a number of states from 1 on"),
        ({"slots": -1}, "slots must be"),
        ({"slots": 1.5}, "slots must be"),
        ({"slots": (0, 0)}, "slots must be"),
        ({"memory": "much"}, "memory must be a size"),
        ({"tolerance": 1.0}, "tolerance must be"),
        ({"tolerance": -0.1}, "tolerance must be"),
        ({"tolerance": "0.1"}, "tolerance must be"),
        ({"tolerance": None}, "tolerance must be"),
        ({"store": "tape"}, "store must be .* write ./tape"),
        ({"store": 5}, "store must be"),
        ({"store": "disk"}, "about slots, and there are none: add slots="),
        ({"store": Path("here")}, "store='here' is about slots"),
        ({"store": "disk", "memory": "1 GB"}, "give slots= in place of memory="),
        ({"schedule": "online"}, "schedule='online' is about slots"),
        ({"slots": 3, "memory": "1 GB"}, "memory= chooses them itself: leave one"),
        ({"slots": 3, "store": "encoded", "tolerance": 0.1}, "a history is encoded"),
        ({"until": 3}, "until must be a function"),
        ({"store": "encoded"}, "needs a tolerance"),
        ({"slots": 2, "schedule": "best"}, "schedule must be"),
        ({"parameters": 3}, "parameters must be tensors or modules"),
        ({"inputs": torch.tensor(1.0)}, "first dimension that counts the steps"),
        ({"inputs": torch.ones(4)}, "inputs are for 4 steps, and 9 are asked for"),
        ({"inputs": [torch.ones(1, requires_grad=True)] * 9}, "torch.stack"),
        ({"inputs": (n for n in range(9))}, "make a list of it"),
    ],
)
def test_arguments(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        er.loop(lambda s, *_: s, torch.ones(3), 9, **wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"relative": "much"}, "relative must be a share"),
        ({"relative": 0.0}, "relative must be a share"),
        ({"every": 2.5}, "every must be a number of steps"),
        ({"every": 0}, "every must be a number of steps"),
        ({"coder": LinearCoder()}, "pass the class"),
    ],
)
def test_encodings(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        Encoding(**wrong)
    with pytest.raises(InvalidArgument, match="1, 2 or 3, got 7"):
        LinearCoder(dims=7)


def test_cells_of_torch_take_their_input_first() -> None:
    cell, h, x = nn.GRUCell(4, 4), torch.ones(2, 4), torch.ones(9, 2, 4)
    with pytest.raises(InvalidArgument, match=r"lambda state, x: cell\(x, state\)"):
        er.loop(cell, h, inputs=x, slots=2)
    er.loop(lambda state, x: cell(x, state), h, inputs=x, parameters=cell, slots=2)


def test_numbers_of_other_types_and_folders_as_text(tmp_path: Path) -> None:
    x = start()
    expected = plain(torch.sin, x, 9)
    for steps in (np.int64(9), torch.tensor(9), torch.tensor([9])):
        found = er.loop(torch.sin, x, steps, slots=np.int32(3), store=f"{tmp_path}/")  # pyright: ignore[reportArgumentType]
        assert torch.equal(found, expected)


def test_parameters_that_can_be_gone_through_once() -> None:
    cell = Cell()
    loop = er.Loop(lambda s: 1.0 * cell(s), parameters=cell.parameters(), slots=2)
    for _ in range(2):
        loop(start(), 5).sum().backward()
    assert cell.weight.grad is not None


def test_steps_and_states() -> None:
    for steps, said in ((-1, "from 0 on"), (2.5, "from 0 on"), (None, "would not end")):
        with pytest.raises(InvalidArgument, match=said):
            er.loop(Cell(), start(), steps)  # pyright: ignore[reportArgumentType]
    for state in (3, "x", [1.0], ()):
        with pytest.raises(InvalidArgument, match="state"):
            er.loop(Cell(), state, 3)
    with pytest.raises(InvalidArgument, match="step must be a function"):
        er.loop(3, start(), 3)  # pyright: ignore[reportArgumentType]
    ways: list[dict[str, Any]] = [{}, {"slots": 2}]
    for options in ways:
        with pytest.raises(InvalidArgument, match="another structure"):
            er.loop(lambda s: (s, s), torch.ones(3), 3, **options)
        with pytest.raises(InvalidArgument, match="the step's state must be a tensor"):
            er.loop(lambda s: None if s is None else 3, torch.ones(3), 3, **options)
        with pytest.raises(InvalidArgument, match=r"must return \(state, output\)"):
            er.loop(lambda s: s, torch.ones(3), 3, outputs=True, **options)
        with pytest.raises(InvalidArgument, match=r"got \[6\] of torch.float32 in step 1 in place"):
            er.loop(lambda s: (torch.cat([s, s]), s), torch.ones(3), 3, outputs=True, **options)
        with pytest.raises(
            InvalidArgument, match=r"\[3\] of torch.float32 .* \[3\] of torch.float64"
        ):
            er.loop(
                lambda s, n: (s, s if n else s.double()), torch.ones(3), 3, outputs=True, **options
            )


def test_a_budget_below_a_single_step() -> None:
    x = torch.ones(1000, requires_grad=True)
    with pytest.raises(BudgetUnreachable, match="bytes is the least"):
        er.loop(torch.sin, x, 100, memory=5000)


def test_changes_between_forward_and_backward_are_noticed() -> None:
    cell, x = Cell(), start()
    total = er.loop(cell, x, 9, slots=2).sum()
    with torch.no_grad():
        cell.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


class Trouble(Exception):
    """Of a step's own."""


@pytest.mark.parametrize("options", [{"slots": 3}, {"slots": 3, "store": "disk"}, {"memory": 9000}])
@pytest.mark.parametrize("when", ["forward", "backward"])
def test_an_exception_in_a_step_comes_through(options: dict[str, Any], when: str) -> None:
    cell, x = Cell(), start()
    going = ["forward"]

    def step(state: Tensor, number: int) -> Tensor:
        if number == 6 and going[0] == when:
            raise Trouble("step 6")
        return cell(state)

    loop = er.Loop(step, parameters=cell, **options)
    if when == "forward":
        with pytest.raises(Trouble, match="step 6"):
            loop(x, 200)
    else:
        total = loop(x, 200).sum()
        going[0] = "backward"
        with pytest.raises(Trouble, match="step 6"):
            total.backward()
    assert loop.engine is not None and loop.engine.held_bytes == 0
    going[0] = ""
    loop(x, 200).sum().backward()


def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    cell, x = Cell(), start()
    er.loop(cell, x, 30, slots=6).sum().backward()
    assert x.grad is not None
    expected, x.grad = x.grad, None
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A state has 72 bytes: two go into the file, and the others do not.
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, limits[1]))
    try:
        with pytest.warns(LoopWarning, match="held in memory, since the disk does not take it"):
            total = er.loop(cell, x, 30, slots=6, store=tmp_path).sum()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    total.backward()
    assert x.grad is not None and torch.equal(x.grad, expected)
    assert list(tmp_path.glob("elbowroom*")) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="held in memory"):
        er.loop(Cell(), start(), 30, slots=4, store=tmp_path / "none").sum().backward()


def test_nan_comes_through() -> None:
    k = nn.Parameter(torch.tensor(2.0))
    ways: list[dict[str, Any]] = [{}, {"slots": 2}]
    for options in ways:
        k.grad = None
        er.loop(
            lambda s: torch.sqrt(s * k - 1.5), torch.ones(3), 20, parameters=k, **options
        ).sum().backward()
        assert k.grad is not None and k.grad.isnan()


def test_a_size_beyond_all_numbers() -> None:
    with pytest.raises(InvalidArgument, match="memory must be a size"):
        er.loop(Cell(), start(), 9, memory="1e400 MB")
