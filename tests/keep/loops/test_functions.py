"""Second derivatives through a loop are those of a plain one."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad, gradcheck, gradgradcheck

import elbowroom as er

from .steps import Cell, plain, pulse, start, wave

WAYS: dict[str, dict[str, Any]] = {
    "two slots": {"slots": 2},
    "four slots": {"slots": 4},
    "online": {"slots": 3, "schedule": "online"},
    "periodic": {"slots": 3, "schedule": "periodic"},
}


def product(score: Tensor, tensors: list[Tensor], directions: list[Tensor]) -> list[Tensor]:
    """A Hessian times a vector, by two backwards."""
    first = grad(score, tensors, create_graph=True)
    inner = sum((g * v).sum() for g, v in zip(first, directions, strict=True))
    assert isinstance(inner, Tensor)
    return list(grad(inner, tensors))


@pytest.mark.parametrize("how", WAYS)
def test_hessian_vector_products(how: str) -> None:
    cell, x = Cell(dtype=torch.float64), start(dtype=torch.float64)
    tensors = [x, *cell.parameters()]
    generator = torch.Generator().manual_seed(7)
    directions = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in tensors]
    expected = product(plain(cell, x, 17).square().sum(), tensors, directions)
    found = product(er.loop(cell, x, 17, **WAYS[how]).square().sum(), tensors, directions)
    for one, other in zip(expected, found, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("how", WAYS)
def test_products_with_inputs_outputs_and_states_without_gradients(how: str) -> None:
    speed = torch.full((40,), 0.3, dtype=torch.float64).requires_grad_()
    force = torch.randn(12, 40, dtype=torch.float64).requires_grad_()
    inner = wave(speed)

    def step(state: Any, push: Tensor) -> Any:
        waves, count = state
        now, before = inner(waves)
        return ((now + 0.1 * push**2, before), count + 1), now[::4] ** 2

    state, held = (pulse(40, torch.float64), torch.tensor(0)), []
    for push in force.unbind():
        state, seen = step(state, push)
        held.append(seen)
    tensors, directions = [speed, force], [torch.ones_like(speed), torch.ones_like(force)]
    expected = product(torch.stack(held).square().sum(), tensors, directions)
    first = (pulse(40, torch.float64), torch.tensor(0))
    (_, count), seen = er.loop(
        step, first, inputs=force, outputs=True, parameters=speed, **WAYS[how]
    )
    assert int(count) == 12
    found = product(seen.square().sum(), tensors, directions)
    for one, other in zip(expected, found, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)


def test_products_through_a_norm_of_layers() -> None:
    """Torch's third derivatives of it are wrong, and need not be asked for."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.LayerNorm(6), torch.nn.Tanh())
    model, x = model.double(), start(dtype=torch.float64)
    tensors = [x, *model.parameters()]
    directions = [torch.ones_like(t) for t in tensors]
    expected = product(plain(model, x, 9).pow(3).sum(), tensors, directions)
    found = product(er.loop(model, x, 9, slots=2).pow(3).sum(), tensors, directions)
    for one, other in zip(expected, found, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-11)


def test_products_of_complex_numbers_and_steps_in_place() -> None:
    turn = torch.tensor(0.9 + 0.2j, dtype=torch.complex128, requires_grad=True)
    x = (torch.linspace(0, 1, 8, dtype=torch.float64) * (1 + 0.5j)).requires_grad_()

    def step(state: Tensor) -> Tensor:
        return (turn * state + 0.1 * state * state).mul_(turn)

    tensors, directions = [x, turn], [torch.full_like(x, 1 - 1j), torch.ones_like(turn)]

    def score(after: Tensor) -> Tensor:
        return after.abs().pow(3).sum()

    def real(run: Tensor) -> list[Tensor]:
        first = grad(score(run), tensors, create_graph=True)
        return list(grad(first, tensors, directions))

    for one, other in zip(
        real(plain(step, x, 7)), real(er.loop(step, x, 7, parameters=turn, slots=2)), strict=True
    ):
        assert torch.allclose(one, other, rtol=1e-10)


def test_products_where_several_steps_are_taped_at_once() -> None:
    speed = torch.full((300,), 0.3, dtype=torch.float64).requires_grad_()
    state, direction = pulse(300, torch.float64), [torch.linspace(0, 1, 300)]
    expected = product(plain(wave(speed), state, 60)[0].square().sum(), [speed], direction)
    loop = er.Loop(wave(speed), parameters=speed, memory=130_000)
    found = product(loop(state, 60)[0].square().sum(), [speed], direction)
    assert loop.plan is not None and loop.plan.kind == "replay" and loop.plan.segment > 1
    assert torch.allclose(expected[0], found[0], rtol=1e-9, atol=1e-12)


def test_against_finite_differences() -> None:
    weight = torch.tensor([[0.4, -0.2], [0.1, 0.3]], dtype=torch.float64, requires_grad=True)
    x = torch.tensor([0.3, -0.5], dtype=torch.float64, requires_grad=True)

    def run(state: Tensor, matrix: Tensor) -> Tensor:
        return er.loop(
            lambda s: torch.tanh(s @ matrix) + 0.5 * s, state, 5, parameters=matrix, slots=2
        )

    assert gradcheck(run, (x, weight))
    assert gradgradcheck(run, (x, weight))


def test_a_third_derivative() -> None:
    x = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def third(run: Any) -> Tensor:
        value = run()
        for _ in range(2):
            (value,) = grad(value, x, create_graph=True)
        return grad(value, x)[0]

    step = lambda s: s + 0.1 * torch.sin(3 * s)  # noqa: E731
    expected = third(lambda: plain(step, x, 9))
    found = third(lambda: er.loop(step, x, 9, slots=2))
    assert torch.allclose(expected, found, rtol=1e-10)


@pytest.mark.parametrize("is_kept", [False, True])
def test_orders_where_all_depends_on_the_same(is_kept: bool) -> None:
    """State, inputs and parameters come from the same tensors, and so do gradients of gradients."""
    generator = torch.Generator().manual_seed(3)
    sizes = ((4, 4), (4,), (6, 3, 4))
    weight, bias, drive = (
        torch.randn(size, generator=generator, dtype=torch.float64).mul(0.4).requires_grad_()
        for size in sizes
    )
    tensors = weight, bias, drive

    def score(**options: Any) -> Tensor:
        matrix = weight.sin()
        first = (bias * weight.sum(0)).expand(3, 4) * 1.0

        def step(state: tuple[Tensor, Tensor], push: Tensor) -> Any:
            now, slow = state
            after = torch.tanh(now @ matrix + bias * push) + 0.1 * slow * slow
            return (after, 0.5 * slow + now.sin()), {"path": after, "power": after * push}

        (now, slow), seen = er.loop(
            step,
            (first, 0.5 * first),
            inputs=drive * bias,
            outputs=True,
            parameters=(matrix, bias),
            **options,
        )
        path, power = seen["path"], seen["power"]
        return now.pow(3).sum() + slow.sum() ** 2 + (path * bias).sin().sum() + power.pow(2).sum()

    def orders(value: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        for order in (1, 2, 3):
            gradients = grad(value, tensors, create_graph=is_kept or order < 3)
            found += [g.detach() for g in gradients]
            total = sum((g * torch.linspace(-1, 1, g.numel()).view_as(g)).sum() for g in gradients)
            value = torch.as_tensor(total)
        return found

    for one, other in zip(orders(score()), orders(score(slots=2)), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_orders_of_loops_in_loops() -> None:
    cell, x = Cell(dtype=torch.float64), start(dtype=torch.float64)

    def inner(state: Tensor) -> Tensor:
        return er.loop(cell, state, 3, slots=2)

    def orders(value: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        for order in (1, 2, 3):
            (gradient,) = grad(value.square().sum(), x, create_graph=order < 3)
            found.append(gradient.detach())
            value = gradient
        return found

    expected = orders(plain(cell, x, 9))
    found = orders(er.loop(inner, x, 3, parameters=cell, slots=2))
    for one, other in zip(expected, found, strict=True):
        assert torch.allclose(one, other, rtol=1e-9)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_loop_inside_of_what_is_compiled() -> None:
    """Torch's compiler leaves it alone: what is before and behind it is compiled."""
    cell, x, graphs = Cell(), start(), []

    def compile_nothing(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    def run(state: Tensor) -> Tensor:
        return 2 * er.loop(cell, 1.5 * state, 9, slots=2).sum()

    (expected,) = grad(run(x), x)
    (found,) = grad(torch.compile(run, backend=compile_nothing)(x), x)
    assert torch.equal(expected, found) and len(graphs) == 2


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_forward_mode_and_transforms_see_a_plain_loop() -> None:
    x = torch.tensor([0.3, 0.9], dtype=torch.float64)
    step = lambda s: s + 0.1 * torch.sin(3 * s)  # noqa: E731
    run = lambda s: er.loop(step, s, 9, slots=2)  # noqa: E731
    value, tangent, *_ = torch.func.jvp(run, (x,), (torch.ones_like(x),))
    assert torch.equal(value, plain(step, x, 9))
    assert torch.allclose(
        tangent, torch.func.jvp(lambda s: plain(step, s, 9), (x,), (torch.ones_like(x),))[1]
    )
    found = torch.func.grad(lambda s: run(s).sum())(x)
    assert torch.allclose(found, torch.func.grad(lambda s: plain(step, s, 9).sum())(x))


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_tangents_of_parameters_come_through() -> None:
    speed = torch.tensor(0.3)
    x = torch.linspace(0, 1, 5)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(speed, torch.tensor(1.0))

        def step(state: Tensor) -> tuple[Tensor, Tensor]:
            after = state + 0.1 * dual * torch.sin(state)
            return after, after.sum()

        for named in (dual, ()):  # whether they are named or not
            for is_on in (True, False):
                with torch.set_grad_enabled(is_on):
                    after, sums = er.loop(step, x, 7, outputs=True, parameters=named, slots=2)
                for found in (after, sums):
                    tangent = torch.autograd.forward_ad.unpack_dual(found).tangent
                    assert tangent is not None and tangent.abs().max() > 0


def test_transforms_of_what_is_not_named() -> None:
    x, speeds = torch.linspace(0, 1, 5), torch.tensor([0.3, 0.6])

    def run(speed: Tensor, *, is_plain: bool) -> Tensor:
        step = lambda s: torch.sin(s * speed) + s  # noqa: E731
        after = plain(step, x, 6) if is_plain else er.loop(step, x, 6, slots=2)
        return after.square().sum()

    for make in (torch.func.grad, lambda f: torch.func.vmap(torch.func.grad(f))):
        given = speeds if make is not torch.func.grad else speeds[0]
        expected = make(lambda k: run(k, is_plain=True))(given)
        assert torch.allclose(make(lambda k: run(k, is_plain=False))(given), expected)


def test_few_slots_are_halved_and_not_fewer_for_the_second_order() -> None:
    called = 0
    knob = torch.tensor(0.9, requires_grad=True)

    def step(x: Tensor) -> Tensor:
        nonlocal called
        called += 1
        return torch.sin(knob * x)

    def count(slots: int) -> int:
        nonlocal called
        called = 0
        after = er.loop(step, torch.ones(()), 60, parameters=(knob,), slots=slots)
        (first,) = grad(after, knob, create_graph=True)
        grad(first, knob)
        return called

    # A single one of twice the size would make 60 * 59 / 2 steps again, some of them with tangents.
    assert count(4) < 60 * 59 / 2 < count(2)
