"""Indices of poolings that are made some samples at a time: the same gradients to the last bit."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations import windows
from elbowroom.keep.activations.faults import Faults
from elbowroom.keep.activations.windows import Deferred, Windowed, pack_windows

POOLINGS: tuple[dict[str, Any], ...] = (
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 1, "dilation": 2, "ceil_mode": True},
    {"kernel_size": (2, 3), "memory_format": torch.channels_last},
)


def packed(x: Tensor, how: dict[str, Any]) -> tuple[Tensor, Windowed]:
    y, index = functional.max_pool2d(x, return_indices=True, **how)
    found = pack_windows(index, windows.windows_of(y.grad_fn, x.shape[-1]))
    assert found is not None
    return index, found


@pytest.mark.parametrize("how", POOLINGS)
@pytest.mark.parametrize("samples", [1, 2, 7])
def test_backward_goes_through_the_batch(
    how: dict[str, Any], samples: int, monkeypatch: Any
) -> None:
    how = dict(how)
    layout = how.pop("memory_format", torch.contiguous_format)
    monkeypatch.setattr(windows, "LEAST_BYTES", 1)
    monkeypatch.setattr(windows, "PIECE_BYTES", samples * 3 * 20 * 22 * 4)
    torch.manual_seed(0)
    x = torch.randn(5, 3, 20, 22).to(memory_format=layout).requires_grad_()
    expected = functional.max_pool2d(x, **how)
    gradient = torch.randn_like(expected)
    (expected_gradient,) = torch.autograd.grad(expected, x, gradient)
    _, payload = packed(x, how)
    deferred: list[Tensor] = []

    def unpack(held: Tensor) -> Tensor:
        if held.dtype != torch.int64:
            return held
        deferred.append(payload.defer(Faults()))
        return deferred[-1]

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), unpack):
        y = functional.max_pool2d(x, **how)
    (found,) = torch.autograd.grad(y, x, gradient)
    assert isinstance(deferred[0], Deferred)
    assert deferred[0].untyped_storage().nbytes() == 8
    assert torch.equal(found, expected_gradient)
    assert found.stride() == expected_gradient.stride()


def test_other_operations_get_the_indices() -> None:
    x = torch.randn(4, 2, 16, 16).requires_grad_()
    index, payload = packed(x, {"kernel_size": 2})
    deferred: Any = Deferred.of(payload, Faults())
    assert torch.equal(deferred + 0, index)
    assert torch.equal(torch.add(input=index, other=deferred), 2 * index)
    assert torch.equal(torch.cat([deferred, index]), torch.cat([index, index]))
    assert isinstance(deferred.detach(), Deferred)


def test_small_ones_and_single_samples_are_made_at_once() -> None:
    x = torch.randn(4, 2, 16, 16).requires_grad_()
    index, payload = packed(x, {"kernel_size": 2})
    assert torch.equal(payload.defer(Faults()), index)
    assert type(payload.defer(Faults())) is Tensor


def test_budgets_defer_them(monkeypatch: Any) -> None:
    """With the gradients of a plain pooling, also twice through one graph and with a graph."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(2 * 64 * 64, 4))
    monkeypatch.setattr(windows, "LEAST_BYTES", 1)
    made: list[Windowed] = []
    plain = Deferred.of
    monkeypatch.setattr(Deferred, "of", staticmethod(lambda p, f: (made.append(p), plain(p, f))[1]))
    x = torch.randn(8, 2, 128, 128)

    def gradients(room: er.Activations | None, **how: Any) -> list[Tensor]:
        start = x.clone().requires_grad_()
        here = 1 * start
        if room is None:
            loss = model(here).square().sum()
        else:
            with room:
                loss = model(here).square().sum()
        return [torch.autograd.grad(loss, start, retain_graph=True, **how)[0] for _ in range(2)]

    expected = gradients(None)
    room = er.Activations(model, memory="8 GB", tolerance=1e-9)
    for found in gradients(room):
        torch.testing.assert_close(found, expected[0], rtol=1e-3, atol=1e-3)
        assert torch.equal(found == 0, expected[0] == 0)
    assert len(made) >= 2
    count = len(made)
    gradients(room, create_graph=True)
    assert len(made) == count


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_pooling_that_asks_for_shapes_gets_no_memory(channels_last: bool) -> None:
    """Its input has been packed to a bit a value, and need not be made of that again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2))
    x = torch.randn(4, 3, 34, 34)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    parameters = list(model.parameters())
    plain = torch.autograd.grad(model(x).square().sum(), parameters)
    room = er.Activations(model, tolerance=0)
    with room:
        loss = model(x).square().sum()
    (row,) = [r for r in room.ledger.rows if "MaxPool2DWithIndices.self" in r.readers]
    assert row.method == "sign"
    found = torch.autograd.grad(loss, parameters)
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
