"""Gradients through `loop` are those of a for-loop, to the last bit where nothing is encoded."""

from collections import defaultdict
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import elbowroom as er
from elbowroom.keep.loops.schedules import fewest_advances, placements

from .steps import Cell, Pendulum, plain, start


def gradients(score: Tensor, *tensors: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(score, tensors))


WAYS: dict[str, dict[str, Any]] = {
    "one slot": {"slots": 1},
    "two slots": {"slots": 2},
    "five slots": {"slots": 5},
    "more slots than steps": {"slots": 100},
    "periodic": {"slots": 4, "schedule": "periodic"},
    "online": {"slots": 4, "schedule": "online"},
    "disk": {"slots": 4, "store": "disk"},
    "memory and disk": {"slots": (2, 3)},
    "budget": {"memory": 20_000},
    "nothing": {},
}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_gradients_have_the_bits_of_a_plain_loop(how: str, steps: int) -> None:
    cell, x = Cell(), start()
    expected = gradients(plain(cell, x, steps).square().sum(), x, *cell.parameters())
    found = gradients(er.loop(cell, x, steps, **WAYS[how]).square().sum(), x, *cell.parameters())
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


@settings(max_examples=25, deadline=None)
@given(steps=st.integers(1, 60), slots=st.integers(1, 12))
def test_steps_are_made_as_often_as_the_formula_says(steps: int, slots: int) -> None:
    cell, x = Cell(), start()
    calls = [0, 0]

    def counted(state: Tensor) -> Tensor:
        calls[torch.is_grad_enabled()] += 1
        return cell(state)

    loop = er.Loop(counted, parameters=cell, slots=slots)
    loop(x, steps).sum().backward()
    # The first run makes the steps after its last kept state as well, to get to the end; its first
    # step is taped, to see what is differentiated; and then each step is taped once.
    rest = steps - 1 - placements(steps, slots)[-1]
    assert calls == [fewest_advances(steps, slots) + rest, 1 + steps]


class Named(NamedTuple):
    angle: Tensor
    speed: Tensor


@pytest.mark.parametrize("how", ["five slots", "online", "budget", "nothing"])
@pytest.mark.parametrize("kind", [tuple, list, Named, dict, Pendulum])
def test_states_of_every_structure(kind: Any, how: str) -> None:
    length = torch.tensor(1.3, requires_grad=True)

    def make(angle: Tensor, speed: Tensor) -> Any:
        if kind in (tuple, list):
            return kind((angle, speed))
        if kind is dict:
            return {"angle": angle, "speed": speed}
        return kind(angle, speed)

    def parts(state: Any) -> tuple[Tensor, Tensor]:
        if kind in (tuple, list):
            return state
        if kind is dict:
            return state["angle"], state["speed"]
        return state.angle, state.speed

    def step(state: Any) -> Any:
        angle, speed = parts(state)
        speed = speed - 0.05 * torch.sin(angle) / length
        return make(angle + 0.05 * speed, speed)

    angle = torch.linspace(0.1, 1, 80).requires_grad_()
    first = make(angle, torch.zeros(80))
    options: dict[str, Any] = {**WAYS[how], "parameters": (length,)}
    expected = gradients(parts(plain(step, first, 30))[0].sum(), angle, length)
    after = er.loop(step, first, 30, **options)
    assert type(after) is kind
    found = gradients(parts(after)[0].sum(), angle, length)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_dicts_of_other_kinds_and_orders() -> None:
    def step(state: Any) -> tuple[Any, Any]:
        after = {"speed": 0.9 * state["speed"], "place": state["place"] + state["speed"]}
        return after, (after if len(seen) % 2 else dict(reversed(after.items())))

    x, seen = start(), []
    ways: list[dict[str, Any]] = [{}, {"slots": 2}]
    for options in ways:
        for kind in (dict, lambda pairs: defaultdict(list, pairs)):
            first = kind([("place", x), ("speed", 2 * x.detach())])
            after, path = er.loop(step, first, 9, outputs=True, **options)
            seen.append((after["place"], after["speed"], path["place"], path["speed"]))
    for found in seen[1:]:
        assert all(torch.equal(one, other) for one, other in zip(seen[0], found, strict=True))


@pytest.mark.parametrize("how", ["two slots", "periodic", "online", "budget", "nothing"])
def test_inputs_and_outputs_of_every_step(how: str) -> None:
    cell, x = Cell(), start()
    drive = torch.randn(25, 3, 6, generator=torch.Generator().manual_seed(4)).requires_grad_()

    def step(state: Tensor, force: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        after = cell(state) + 0.1 * force
        return after, {"mean": after.mean(), "first": after[:, 0] * force[:, 0]}

    def score(after: Tensor, held: dict[str, Tensor]) -> Tensor:
        return after.square().sum() + held["mean"].square().sum() + held["first"].sum()

    state, means, firsts = x, [], []
    for force in drive.unbind():
        state, output = step(state, force)
        means.append(output["mean"])
        firsts.append(output["first"])
    total = score(state, {"mean": torch.stack(means), "first": torch.stack(firsts)})
    expected = torch.autograd.grad(total, (x, drive, *cell.parameters()))
    after, held = er.loop(step, x, inputs=drive, outputs=True, parameters=cell, **WAYS[how])
    assert held["mean"].shape == (25,) and held["first"].shape == (25, 3)
    found = torch.autograd.grad(score(after, held), (x, drive, *cell.parameters()))
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("how", ["two slots", "five slots", "online", "disk", "budget"])
def test_an_output_that_is_the_state_itself(how: str) -> None:
    cell, x = Cell(), start()

    def step(state: tuple[Tensor, Tensor]) -> Any:
        now = cell(state[0]) * state[1].cos()
        return (now, state[1] + now), {"path": now, "other": now.sin(), "again": now}

    def gradient(**options: Any) -> list[Tensor]:
        _, seen = er.loop(
            step, (x, torch.ones_like(x)), 23, outputs=True, parameters=cell, **options
        )
        total = sum((seen[name] * (n + 1)).square().sum() for n, name in enumerate(seen))
        assert isinstance(total, Tensor)
        return gradients(total, x, *cell.parameters())

    for one, other in zip(gradient(), gradient(**WAYS[how]), strict=True):
        assert torch.equal(one, other)


def test_an_output_that_is_the_state_only_now_and_then() -> None:
    cell, x = Cell(), start()

    def step(state: Tensor, number: int) -> tuple[Tensor, Tensor]:
        after = cell(state)
        return after, (after if number % 3 else after * 2)

    def gradient(**options: Any) -> list[Tensor]:
        _, seen = er.loop(step, x, 11, outputs=True, parameters=cell, **options)
        return gradients(seen.square().sum(), x, *cell.parameters())

    for one, other in zip(gradient(), gradient(slots=3), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_inputs_may_be_items_of_a_list_and_a_step_may_ask_for_its_number() -> None:
    cell, x = Cell(), start()
    ways: list[dict[str, Any]] = [{"slots": 3}, {"memory": 20_000}, {}]
    for options in ways:
        listed = er.loop(
            lambda state, item: cell(state) * item["by"],
            x,
            inputs=[{"by": 1 + n / 10} for n in range(9)],
            parameters=cell,
            **options,
        )
        counted = er.loop(
            lambda state, n: cell(state) * (1 + n / 10), x, 9, parameters=cell, **options
        )
        assert torch.equal(listed, counted)
        (one,) = gradients(listed.sum(), x)
        (other,) = gradients(counted.sum(), x)
        assert torch.equal(one, other)


@pytest.mark.parametrize("how", ["two slots", "online", "periodic", "budget", "nothing"])
@pytest.mark.parametrize("steps", [None, 50])
def test_a_loop_may_end_early(how: str, steps: int | None) -> None:
    cell, x = Cell(), start()
    state = plain(cell, x, 12)
    expected = gradients(state.sum(), x, *cell.parameters())
    calls: list[int] = []

    def step(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return cell(state[0]), state[1] + 1

    def is_over(state: tuple[Tensor, Tensor]) -> Tensor:
        calls.append(1)
        assert not torch.is_grad_enabled()
        return state[1] == 12

    loop = er.Loop(step, parameters=cell, **WAYS[how])
    after, count = loop((x, torch.tensor(0)), steps, until=is_over)
    assert torch.equal(after, state) and len(calls) == int(count) == 12
    found = gradients(after.sum(), x, *cell.parameters())
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert len(calls) == 12


def test_random_numbers_are_drawn_again_and_go_on_as_before() -> None:
    cell, x = Cell(), start()

    def step(state: Tensor) -> Tensor:
        return nn.functional.dropout(cell(state), 0.2)

    torch.manual_seed(3)
    after = plain(step, x, 20)
    expected = gradients(after.sum(), x, *cell.parameters())
    drawn = torch.rand(4)
    for how in ("one slot", "five slots", "periodic", "online", "disk", "budget"):
        torch.manual_seed(3)
        after = er.loop(step, x, 20, parameters=cell, **WAYS[how])
        found = gradients(after.sum(), x, *cell.parameters())
        assert torch.equal(torch.rand(4), drawn), how
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one, other), how


def test_running_statistics_are_taken_once() -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh())

    model, x = make(), start()
    plain(model, x, 12).sum().backward()
    for how in ("two slots", "online", "budget"):
        other = make()
        er.loop(other, x, 12, **WAYS[how]).sum().backward()
        for name, value in model.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(one.grad, two.grad)  # pyright: ignore[reportArgumentType]


def test_steps_in_place() -> None:
    speed = torch.tensor(0.3, requires_grad=True)

    def step(state: Tensor) -> Tensor:
        return state.add_(0.1 * speed).mul_(1.01)

    x = torch.linspace(0, 1, 50)
    expected = gradients(plain(step, x.clone(), 15).sum(), speed)
    for how in ("one slot", "five slots", "online", "disk"):
        kept = x.clone()
        found = gradients(er.loop(step, kept, 15, parameters=speed, **WAYS[how]).sum(), speed)
        assert torch.equal(kept, x), how
        assert torch.equal(found[0], expected[0]), how


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_other_types(dtype: torch.dtype) -> None:
    turn = torch.tensor(0.9, dtype=dtype, requires_grad=True)
    x = torch.linspace(0, 1, 40).to(dtype).requires_grad_()
    step = lambda state: turn * state + 0.1 * state * state  # noqa: E731
    expected = gradients(plain(step, x, 12).abs().sum(), x, turn)
    for how in ("two slots", "online"):
        found = gradients(er.loop(step, x, 12, parameters=turn, **WAYS[how]).abs().sum(), x, turn)
        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


@pytest.mark.parametrize("how", ["two slots", "disk", "memory and disk", "online"])
def test_tensors_that_lie_in_memory_in_other_ways(how: str) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 3, 3, padding=1)
    x = torch.randn(2, 3, 12, 12).to(memory_format=torch.channels_last).requires_grad_()
    step = lambda s: torch.tanh(layer(s))  # noqa: E731
    expected = gradients(plain(step, x, 9).square().sum(), x, *layer.parameters())
    after = er.loop(step, x, 9, parameters=layer, **WAYS[how])
    found = gradients(after.square().sum(), x, *layer.parameters())
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    z = (torch.linspace(0, 1, 9) * (1 + 0.5j)).requires_grad_()

    def turn(state: Any) -> Any:
        value, _, flags, empty = state
        value = (0.9j * value + 0.1).conj()
        return value, value.conj().imag[::2], ~flags, empty

    state = z, torch.zeros(5), torch.tensor([True, False]), torch.zeros(0, 3)
    expected = gradients(plain(turn, state, 9)[0].abs().sum(), z)
    (found,) = gradients(er.loop(turn, state, 9, **WAYS[how])[0].abs().sum(), z)
    assert torch.equal(found, expected[0])


def test_whole_numbers_in_a_state_and_shapes_that_change() -> None:
    weight = torch.tensor(0.5, requires_grad=True)

    def step(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        values, count = state
        return torch.cat([values * weight, values[:1]]), count + 1

    first = torch.ones(3), torch.tensor(0)
    expected = gradients(plain(step, first, 9)[0].sum(), weight)
    for how in ("two slots", "online", "disk"):
        values, count = er.loop(step, first, 9, parameters=weight, **WAYS[how])
        assert int(count) == 9 and values.shape == (12,)
        assert torch.equal(gradients(values.sum(), weight)[0], expected[0])


def test_no_step_and_no_gradient() -> None:
    cell, x = Cell(), start()
    for options in WAYS.values():
        after = er.loop(cell, x, 0, **options)
        assert torch.equal(after, x)
        assert torch.equal(gradients(after.sum(), x)[0], torch.ones_like(x))
        with torch.no_grad():
            assert torch.equal(er.loop(cell, x, 9, **options), plain(cell, x, 9))


def test_a_loop_in_a_step() -> None:
    cell, x = Cell(), start()

    def inner(state: Tensor) -> Tensor:
        return er.loop(cell, state, 4, slots=2)

    expected = gradients(plain(cell, x, 20).sum(), x, *cell.parameters())
    found = gradients(er.loop(inner, x, 5, parameters=cell, slots=2).sum(), x, *cell.parameters())
    for one, other in zip(expected, found, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-7)


def test_backward_twice_through_one_loop() -> None:
    cell, x = Cell(), start()
    for how in ("two slots", "online", "budget"):
        total = er.loop(cell, x, 15, **WAYS[how]).sum()
        (first,) = torch.autograd.grad(total, x, retain_graph=True)
        (second,) = torch.autograd.grad(total, x)
        assert torch.equal(first, second)
