"""What hooks change in autograd, one test a line of the table of traps."""

import copy
import threading
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import elbowroom as er
from tests.keep.activations.models import (
    make,
    run,
)


def test_in_place_change_after_saving_is_an_error_as_without() -> None:
    model: Any = nn.Linear(64, 64)
    x = torch.randn(256, 64)

    def step(room: er.Activations | None) -> str:
        with room or nullcontext():
            hidden = model(x).sigmoid()
            loss = (hidden * 2).sum()
            hidden.add_(1)
        with pytest.raises(RuntimeError) as caught:
            loss.backward()
        return str(caught.value)

    plain, ours = step(None), step(er.Activations(model))
    assert "modified by an inplace operation" in plain
    assert ours.split(" Hint")[0] == plain.split(" Hint")[0]


def test_in_place_change_of_a_kept_tensor_is_noticed() -> None:
    model: Any = nn.Linear(4, 4)
    with er.Activations(model):
        hidden = model(torch.randn(2, 4)).sigmoid()
        loss = hidden.sum()
        hidden.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_several_backwards_through_one_graph() -> None:
    model, x, y = make("transformer")
    model.eval()
    room = er.Activations(model)
    with room:
        loss = functional.cross_entropy(model(x), y)
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    loss.backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(first, model.parameters(), strict=True))


def test_double_backward() -> None:
    model: Any = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1)).double()
    x = torch.randn(300, 64, dtype=torch.float64, requires_grad=True)

    def penalty(context: Any) -> Tensor:
        with context:
            out = model(x).sum()
            (slope,) = torch.autograd.grad(out, x, create_graph=True)
            (second,) = torch.autograd.grad(slope.square().sum(), model[0].weight)
        return second

    plain = penalty(nullcontext())
    assert torch.equal(plain, penalty(er.Activations(model, tolerance=0)))
    lossy = penalty(er.Activations(model))
    assert 0 < float((plain - lossy).norm() / plain.norm()) < 0.2


def test_checkpoint_outside_and_inside() -> None:
    model, x, y = make("transformer")
    _, plain = run(model, x, y)
    blocks = model.blocks
    room = er.Activations(model, tolerance=0)

    def outside() -> None:
        with room:
            hidden = model.embed(x)
            for block in blocks:
                hidden = checkpoint(block, hidden, use_reentrant=False)
            loss = functional.cross_entropy(model.head(model.norm(hidden)).transpose(1, 2), y)
        loss.backward()

    def inside() -> None:
        def region(hidden: Tensor) -> Tensor:
            with room:
                return blocks(hidden)

        hidden = checkpoint(region, model.embed(x), use_reentrant=False)
        functional.cross_entropy(model.head(model.norm(hidden)).transpose(1, 2), y).backward()

    for step in (outside, inside):
        torch.manual_seed(1)
        model.zero_grad()
        step()
        for name, parameter in model.named_parameters():
            assert torch.equal(plain[name], parameter.grad), (step.__name__, name)


def test_checkpoint_inside_a_room_still_recomputes() -> None:
    """Inside a checkpointed region our hooks would keep everything: they stay away."""
    model, x, _ = make("transformer")
    room = er.Activations(model)
    calls = []
    model.blocks.register_forward_pre_hook(lambda *_: calls.append(1))

    def region(hidden: Tensor) -> Tensor:
        with room:
            return model.blocks(hidden)

    checkpoint(region, model.embed(x), use_reentrant=False).sum().backward()
    assert len(calls) == 2


def test_gradient_accumulation() -> None:
    model, x, y = make("upward")
    room = er.Activations(model, tolerance=0)
    twin = copy.deepcopy(model)
    for part in (slice(0, 8), slice(8, 16)):
        functional.cross_entropy(twin(x[part]), y[part]).backward()
        with room:
            loss = functional.cross_entropy(model(x[part]), y[part])
        loss.backward()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_two_graphs_alive_at_once() -> None:
    model, x, y = make("convolutional")
    model.eval()
    room = er.Activations(model, tolerance=0)
    _, plain = run(model, x, y)
    losses = []
    for _ in range(2):
        with room:
            losses.append(functional.cross_entropy(model(x), y))
    for loss in reversed(losses):
        model.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            assert torch.equal(plain[name], parameter.grad)


def test_module_used_twice_and_changing_shapes() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(torch.tanh(self.layer(x)))

    model = Twice()
    room = er.Activations(model)
    for rows in (300, 64, 1000, 1):
        x = torch.randn(rows, 64)
        plain = torch.autograd.grad(model(x).square().sum(), model.layer.weight)[0]
        with room:
            loss = model(x).square().sum()
        lossy = torch.autograd.grad(loss, model.layer.weight)[0]
        assert float((plain - lossy).norm()) <= 0.1 * float(plain.norm())


def test_graph_that_changes_from_step_to_step() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.step = 0

        def forward(self, x: Tensor) -> Tensor:
            self.step += 1
            y = functional.relu(self.conv(x))
            if self.step % 3 == 0:
                return functional.max_pool2d(y, 2).sum()
            return (functional.gelu(y) if self.step % 3 == 1 else y * y).sum()

    model = Branches()
    x = torch.randn(4, 3, 32, 32)
    room = er.Activations(model)
    for _ in range(9):
        before = model.step
        plain = torch.autograd.grad(model(x), model.conv.weight)[0]
        model.step = before
        with room:
            loss = model(x)
        lossy = torch.autograd.grad(loss, model.conv.weight)[0]
        assert float((plain - lossy).norm()) <= 0.1 * float(plain.norm())


def test_no_grad_and_eval_hold_nothing() -> None:
    model, x, _ = make("convolutional")
    model.eval()
    room = er.Activations(model)
    with room, torch.no_grad():
        inside = model(x)
    with torch.no_grad():
        assert torch.equal(inside, model(x))
    assert room.ledger.saved_bytes == 0


def test_threads_do_not_meet() -> None:
    model, x, y = make("upward")
    model.eval()
    _, plain = run(model, x, y)
    room = er.Activations(model, tolerance=0)
    wrong: list[str] = []

    def work() -> None:
        for _ in range(3):
            with room:
                loss = functional.cross_entropy(model(x), y)
            names, parameters = zip(*model.named_parameters(), strict=True)
            for name, gradient in zip(names, torch.autograd.grad(loss, parameters), strict=True):
                if not torch.equal(gradient, plain[name]):
                    wrong.append(name)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_custom_function_keeps_its_values() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            (g,) = gradients
            (x,) = ctx.saved_tensors
            return 3 * x * x * g

    model: Any = nn.Linear(64, 64)
    x = torch.randn(256, 64)
    plain = torch.autograd.grad(Cube.apply(model(x)).sum(), model.weight)[0]
    with er.Activations(model, tolerance=0):
        loss = Cube.apply(model(x)).sum()
    assert torch.equal(plain, torch.autograd.grad(loss, model.weight)[0])
    with er.Activations(model):
        loss = Cube.apply(model(x)).sum()
    lossy = torch.autograd.grad(loss, model.weight)[0]
    assert 0 < float((plain - lossy).norm()) < 0.05 * float(plain.norm())


def test_views_come_back_with_their_layout() -> None:
    seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sum()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            (g,) = gradients
            (x,) = ctx.saved_tensors
            seen.append((tuple(x.shape), x.stride()))
            return g.expand(x.shape)

    model: Any = nn.Linear(8, 8)
    base = torch.randn(64, 3, 8, 16, requires_grad=True)
    cases = [
        base.to(memory_format=torch.channels_last),
        base.transpose(1, 3),
        base.permute(3, 0, 2, 1),
        base[:, :1].expand(64, 3, 8, 16),
    ]
    for case in cases:
        with er.Activations(model):
            loss = Look.apply(case)
        loss.backward()
    assert seen[0] == (tuple(cases[0].shape), cases[0].stride())
    assert seen[1] == (tuple(cases[1].shape), cases[1].stride())
    assert seen[2] == (tuple(cases[2].shape), cases[2].stride())
    assert seen[3][0] == (64, 3, 8, 16)
    assert seen[3][1][1] == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite(bad: float) -> None:
    model: Any = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
    x = torch.randn(512, 64)
    x[3, 5] = bad
    plain = torch.autograd.grad(model(x)[10:].sum(), model[2].weight)[0]
    with er.Activations(model):
        loss = model(x)[10:].sum()
    lossy = torch.autograd.grad(loss, model[2].weight)[0]
    assert torch.equal(torch.isfinite(plain), torch.isfinite(lossy))


def test_overflow_in_half_precision() -> None:
    model: Any = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).half()
    x = (torch.randn(256, 64) * 3e4).half()
    plain = torch.autograd.grad(model(x).float().square().sum(), model[0].weight)[0]
    with er.Activations(model):
        loss = model(x).float().square().sum()
    lossy = torch.autograd.grad(loss, model[0].weight)[0]
    assert torch.equal(torch.isfinite(plain), torch.isfinite(lossy))


def test_empty_batch() -> None:
    model: Any = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    with er.Activations(model):
        loss = model(torch.randn(0, 8)).sum()
    loss.backward()
    assert float(model[0].weight.grad.abs().sum()) == 0


def test_modules_added_later() -> None:
    model, x, y = make("convolutional")
    room = er.Activations(model)
    run(model, x, y, room)
    model.append(nn.Linear(10, 10))
    run(model, x, y, room)
    assert any(row.name.startswith("9:") for row in room.ledger.rows)
    assert model[9].weight.grad is not None
