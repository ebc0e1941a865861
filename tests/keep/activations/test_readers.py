"""Nobody writes over what somebody else reads."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er

# Large enough for results to be written over what was decoded.
SHAPE = (8, 3, 64, 64)


def same(y: Tensor) -> Tensor:
    return y


def norm(y: Tensor) -> Tensor:
    return functional.layer_norm(y, y.shape[-1:])


MADE = {
    "convolution": same,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "norm": norm,
    "tanh": torch.tanh,
}
PRODUCTS = {
    "square": lambda y: y * y,
    "cube": lambda y: y * y * y,
    "views": lambda y: y.flatten(1) * y.reshape(SHAPE[0], -1),
    "turned": lambda y: y * y.mT,
    "sum": lambda y: (y + 1) * y,
}


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("memory", [None, "16 GB"])
def test_a_node_that_reads_a_tensor_twice(made: str, product: str, memory: str | None) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 16, 3, padding=1)
    x = torch.randn(SHAPE) + torch.linspace(-1, 1, 64)
    weights = torch.linspace(0, 2, 64).repeat(16 * 8 * 64)

    def gradient(room: er.Activations | None) -> Tensor:
        with room or torch.enable_grad():
            y = PRODUCTS[product](MADE[made](layer(x) + 0.1))
            # The mean square of what is normalised has no gradient.
            loss = (y.flatten() * weights).sum()
        return torch.autograd.grad(loss, layer.weight)[0]

    expected = gradient(None)
    assert torch.equal(gradient(er.Activations(layer, tolerance=0, memory=memory)), expected)
    room = er.Activations(layer, tolerance=0.1, memory=memory, meter=0)
    found = gradient(room)
    # The first bounds under a budget are loose.
    assert (found - expected).norm() < (0.1 if memory is None else 0.4) * expected.norm()
    room.close()


class Handing(torch.autograd.Function):
    """Half of the squared norm, whose gradient is what was saved: not a copy of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square().sum() / 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return ctx.saved_tensors[0]


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_functions_may_hand_on_what_they_have_saved(tolerance: float) -> None:
    torch.manual_seed(0)
    layer, weights = nn.Conv2d(3, 16, 3, padding=1), nn.Parameter(torch.rand(8, 16, 64, 64))
    model = nn.ModuleList([layer])
    model.register_parameter("weights", weights)
    x = torch.randn(SHAPE)

    def gradients(room: er.Activations | None) -> tuple[Tensor, ...]:
        with room or torch.enable_grad():
            y = layer(x)
            loss = 3 * (y * weights).sum() + Handing.apply(y)
        return torch.autograd.grad(loss, [layer.weight, weights])

    expected = gradients(None)
    for one, two in zip(
        gradients(er.Activations(model, tolerance=tolerance)), expected, strict=True
    ):
        assert (one - two).norm() <= 0.5 * tolerance * two.norm()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1), nn.GELU()),
        *(nn.Conv2d(16, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(16, 4, 3)),
    )


@pytest.mark.parametrize("memory", [None, "16 GB"])
def test_threads_that_run_through_one_graph(memory: str | None) -> None:
    model, x = network(), torch.randn(SHAPE)
    wanted = list(model.parameters())
    expected = torch.autograd.grad(model(x).square().mean(), wanted)
    room = er.Activations(model, tolerance=0.01, memory=memory, meter=0)
    for _ in range(6):
        with room:
            loss = model(x).square().mean()
        found: list[tuple[Tensor, ...]] = []

        def run(loss: Tensor = loss, found: list[tuple[Tensor, ...]] = found) -> None:
            found.append(torch.autograd.grad(loss, wanted, retain_graph=True))

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 3
        for each in found:
            for one, two in zip(each, expected, strict=True):
                assert (one - two).norm() < 0.05 * two.norm()


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
@pytest.mark.parametrize("memory", [None, "16 GB"])
def test_many_gradients_at_once(tolerance: float, memory: str | None) -> None:
    model, x = network(), torch.randn(SHAPE)
    wanted = list(model.parameters())
    room = er.Activations(model, tolerance=tolerance, memory=memory, meter=0)
    with torch.enable_grad():
        expected = torch.autograd.grad(
            model(x).flatten(1).mean(1), wanted, torch.eye(8), is_grads_batched=True
        )
    for _ in range(3):
        with room:
            y = model(x).flatten(1).mean(1)
        found = torch.autograd.grad(y, wanted, torch.eye(8), is_grads_batched=True)
        for one, two in zip(found, expected, strict=True):
            if tolerance == 0:
                assert torch.equal(one, two)
            assert (one - two).norm() < 0.1 * two.norm()


def test_statistics_have_not_changed_for_a_graph_that_is_run_again() -> None:
    """The meter runs the model, and puts the statistics back."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.Conv2d(16, 4, 3))
    room = er.Activations(model, tolerance=0.1, meter=1)
    for _ in range(5):
        with room:
            loss = model(torch.randn(SHAPE)).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
    assert room.ledger.readings


def test_a_backward_that_fails_is_followed_by_one_that_counts() -> None:
    model = network()
    room = er.Activations(model, tolerance=0.1, meter=0)

    def refuse(_: Any) -> None:
        raise ValueError("not now")

    for _ in range(4):
        with room:
            middle = model[:4](torch.randn(SHAPE))
            loss = model[4:](middle).square().mean()
        handle = middle.register_hook(refuse)
        with pytest.raises(ValueError, match="not now"):
            loss.backward(retain_graph=True)
        handle.remove()
        loss.backward()
    assert any(row.bound > 0 for row in room.ledger.rows)
    assert room.ledger.gradient_error > 0


@pytest.mark.parametrize("readers", [1, 2])
def test_a_mask_is_made_where_the_values_were_only_by_the_last_reader(readers: int) -> None:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 16, 3, padding=1)
    others = [nn.Conv2d(16, 4, 3, padding=1) for _ in range(readers)]
    model = nn.ModuleList([first, *others])
    parameters = list(model.parameters())
    x = torch.randn(SHAPE)
    room = er.Activations(model, tolerance=0.1, meter=0)
    once = [torch.zeros(())]
    for _ in range(5):
        with room:
            y = functional.relu(first(x))
            loss = sum((other(y).square().mean() for other in others), torch.zeros(()))
        once = list(torch.autograd.grad(loss, parameters, retain_graph=True))
        twice = torch.autograd.grad(loss, parameters)
        assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))
    assert any(row.bound > 0 and "Relu.result" in row.readers for row in room.ledger.rows)
    # The mask is the exact one: the bias of the first layer reads nothing else that is encoded.
    loss = sum((other(functional.relu(first(x))).square().mean() for other in others), x.sum() * 0)
    exact = torch.autograd.grad(loss, parameters[1])[0]
    assert torch.allclose(once[1], exact, rtol=1e-4, atol=1e-6)
