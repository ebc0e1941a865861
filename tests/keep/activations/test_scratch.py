"""Results of backward in the place of what was decoded for it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.keep.activations import scratch
from elbowroom.keep.activations.budget import Budget
from elbowroom.keep.activations.faults import Faults
from elbowroom.keep.activations.scratch import Scratch, suits
from elbowroom.keep.activations.sites import Form
from elbowroom.keep.loops.footprint import Footprint

aten = torch.ops.aten

ELEMENTWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda g, x: aten.threshold_backward(g, x, 0),
    "leaky": lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    "elu": lambda g, x: aten.elu_backward(g, 1.0, 1, 1, False, x),
    "gelu": aten.gelu_backward,
    "tanh gelu": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "silu": aten.silu_backward,
    "tanh": aten.tanh_backward,
    "sigmoid": aten.sigmoid_backward,
    "product": lambda g, x: g * x,
}


def draw(*shape: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(shape), torch.randn(shape)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_results_have_the_same_bits_and_take_its_place(name: str) -> None:
    g, x = draw(64, 300)
    expected = ELEMENTWISE[name](g, x)
    place = x.clone()
    found = ELEMENTWISE[name](g, Scratch.over(place, place.clone, Faults()))
    assert type(found) is Tensor
    assert torch.equal(found, expected)
    assert found.data_ptr() == place.data_ptr()


def test_a_product_that_broadcasts_is_left_alone() -> None:
    g, x = torch.randn(64, 300), torch.randn(300)
    place = x.clone()
    assert torch.equal(g * Scratch.over(place, place.clone, Faults()), g * x)
    assert torch.equal(place, x)


def test_anything_else_sees_a_plain_tensor() -> None:
    _, x = draw(4, 5)
    found = Scratch.over(x, x.clone, Faults()) + 1
    assert type(found) is Tensor
    assert torch.equal(found, x + 1)


@pytest.mark.parametrize("is_training", [True, False])
def test_a_normalisation_goes_through_the_channels(is_training: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(scratch, "_NORM_BYTES", 0)
    monkeypatch.setattr(scratch, "_NORM_PIECE_BYTES", 4 * 6 * 5 * 4)
    g, x = draw(4, 16, 6, 5)
    statistics = (torch.rand(16), torch.zeros(16), torch.ones(16), torch.rand(16), torch.rand(16))
    ending = (is_training, 1e-5, [True, True, True])
    expected = aten.native_batch_norm_backward(g, x, *statistics, *ending)
    place = x.clone()
    found = aten.native_batch_norm_backward(
        g, Scratch.over(place, place.clone, Faults()), *statistics, *ending
    )
    assert found[0].data_ptr() == place.data_ptr()
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two)


def test_only_what_is_worth_it_is_lent() -> None:
    large = torch.zeros(1 << 20)
    assert suits("Relu", large, in_pieces=False)
    assert suits("Convolution", large, in_pieces=True)
    assert not suits("Convolution", large, in_pieces=False)
    assert not suits("Sort", large, in_pieces=True)
    assert not suits("Relu", torch.zeros(16), in_pieces=True)
    assert not suits("Relu", large[::2], in_pieces=True)
    assert not suits("Relu", large.long(), in_pieces=True)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, padding=1), nn.GELU(), nn.Dropout(0.3)),
        *(nn.Conv2d(16, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 1, 1)),
    )


def gradients(model: nn.Module, x: Tensor, room: er.Activations | None, **how: Any) -> list[Tensor]:
    torch.manual_seed(1)
    with room or torch.enable_grad():
        loss = model(x).square().mean()
    wanted = list(model.parameters())
    if how.get("twice"):
        torch.autograd.grad(loss, wanted, retain_graph=True)
    return list(torch.autograd.grad(loss, wanted, **{k: v for k, v in how.items() if k != "twice"}))


@pytest.mark.parametrize("how", [{}, {"twice": True}, {"create_graph": True}])
@pytest.mark.parametrize("memory", [None, "16 GB"])
def test_a_network_has_its_gradients(how: Any, memory: str | None) -> None:
    x = torch.randn(8, 3, 64, 64)
    model = network()
    expected = gradients(model, x, None, **how)
    exact = er.Activations(model, tolerance=0, memory=memory, meter=0)
    assert all(
        torch.equal(one, two)
        for one, two in zip(gradients(model, x, exact, **how), expected, strict=True)
    )
    room = er.Activations(model, tolerance=0.1, meter=0)
    for one, two in zip(gradients(model, x, room, **how), expected, strict=True):
        # A bias in front of a normalisation has none.
        assert (one - two).norm() < 0.2 * two.norm() + 1e-4
    room.close()
    exact.close()


@pytest.mark.parametrize("how", [{}, {"twice": True}, {"create_graph": True}])
def test_what_comes_back_from_disk_is_lent_too(how: Any, monkeypatch: Any) -> None:
    lent: list[Tensor] = []
    plain = Scratch.over
    monkeypatch.setattr(
        Scratch, "over", staticmethod(lambda t, *of: (lent.append(t), plain(t, *of))[1])
    )
    x = torch.randn(8, 3, 64, 64)
    model = network()
    expected = gradients(model, x, None, **how)
    counts: list[int] = []
    for form, method in ((Form.ENCODE, "encode"), (Form.OFFLOAD, "offload")):
        monkeypatch.setattr(Budget, "form_of", lambda *_, form=form: form)
        room = er.Activations(model, tolerance=0.1, memory="16 GB", meter=0)
        lent.clear()
        found = gradients(model, x, room, **how)
        counts.append(len(lent))
        assert method in {row.method for row in room.ledger.rows}
        for one, two in zip(found, expected, strict=True):
            assert (one - two).norm() < 0.2 * two.norm() + 1e-4
    assert counts[0] == counts[1]
    assert (counts[0] > 0) == ("create_graph" not in how)


def test_backward_has_fewer_tensors_at_once(monkeypatch: Any) -> None:
    x = torch.randn(1 << 12, 64)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU())
    nbytes = 4 * 256 << 12
    peaks = []
    for lends in (True, False):
        if not lends:
            monkeypatch.setattr("elbowroom.keep.activations.returns.suits", lambda *a, **k: False)
        room = er.Activations(model, tolerance=0.1, meter=0)
        with room:
            loss = model(x).mean()
        with Footprint() as footprint:
            loss.backward()
        peaks.append(footprint.peak_bytes)
        room.close()
    assert peaks[0] + 0.9 * nbytes <= peaks[1]
