"""A fixed room: the right tensors, within the bound, and nothing else of the training changed."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from elbowroom.science.transformer import SelfAttention
from elbowroom.study.fixed import FixedRoom
from elbowroom.study.treatments import Treatment, fixed

X = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(3))


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 4),
    )


def gradients(treatment: Treatment | None) -> tuple[dict[str, torch.Tensor], FixedRoom | None]:
    network = make_network()
    room = None if treatment is None else FixedRoom(network, treatment, seed=1)
    if room is None:
        loss = network(X).square().mean()
    else:
        with room:
            loss = network(X).square().mean()
    loss.backward()
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}, room


ITEMS = 8 * 8 * 16 * 16


@pytest.mark.parametrize(
    ("kind", "tensors", "items", "moved"),
    [
        # The first convolution keeps the user's input, which is left alone.
        ("convolution", 1, ITEMS, {"3.weight"}),
        ("norm", 1, ITEMS, {"0.weight", "1.weight"}),
        ("activation", 1, ITEMS, set[str]()),
        ("pooling", 1, ITEMS, set[str]()),
        ("linear", 1, ITEMS // 4, {"6.weight"}),
        ("attention", 0, 0, set[str]()),
    ],
)
def test_errors_go_where_the_kind_says(
    kind: str, tensors: int, items: int, moved: set[str]
) -> None:
    exact, _ = gradients(None)
    wrong, room = gradients(fixed(kind, "range", 0.02))
    assert room is not None
    assert (room.ledger.tensors, room.ledger.saved_bytes) == (tensors, 4 * items)
    assert room.ledger.kept_bytes < room.ledger.saved_bytes or not tensors
    differing = {name for name in exact if not torch.equal(exact[name], wrong[name])}
    # Whatever is below a layer whose mask or scale moved may move with it.
    assert moved <= differing
    if kind in ("convolution", "linear", "pooling", "attention"):
        assert differing == moved
    for name in differing:
        assert float((exact[name] - wrong[name]).norm() / exact[name].norm()) < 0.5


def test_a_tight_bound_leaves_gradients_nearly_as_they_are() -> None:
    exact, _ = gradients(None)
    for treatment in (
        fixed("all", "absolute", 1e-6),
        fixed("all", "pointwise", 1e-6),
        fixed("all", "range", 1e-7, codec="block"),
        fixed("all", "range", 1e-7, dithered=False),
    ):
        wrong, _ = gradients(treatment)
        for name, value in exact.items():
            assert torch.allclose(value, wrong[name], rtol=1e-3, atol=1e-6)


def test_codecs_differ_in_bytes_alone() -> None:
    block, one = gradients(fixed("all", "range", 0.05, codec="block"))
    dense, other = gradients(fixed("all", "range", 0.05, codec="dense"))
    assert all(torch.equal(block[name], dense[name]) for name in block)
    assert one is not None and other is not None
    assert other.ledger.kept_bytes < one.ledger.kept_bytes


def test_parts_of_attention_are_told_apart() -> None:
    x = torch.randn(4, 32, 64, generator=torch.Generator().manual_seed(0))
    moved: dict[str, bool] = {}
    for kind in ("query", "key", "value", "output"):
        torch.manual_seed(0)
        attention = SelfAttention(64, 2, causal=True, dropout=0.0)
        room = FixedRoom(attention, fixed(f"attention-{kind}", "range", 0.1))
        with room:
            loss = attention(x).square().sum()
        assert room.ledger.tensors == 1
        assert room.ledger.saved_bytes == 4 * x.numel()
        loss.backward()
        room_all = FixedRoom(attention, fixed("attention", "range", 0.1))
        with room_all:
            attention(x)
        assert room_all.ledger.tensors == 4
        assert attention.qkv.weight.grad is not None
        moved[kind] = bool(attention.qkv.weight.grad.isfinite().all())
    assert all(moved.values())


def test_an_exception_inside_leaves_no_hooks() -> None:
    network = make_network()
    room = FixedRoom(network, fixed("all", "range", 0.5))
    with pytest.raises(RuntimeError), room:
        network(torch.zeros(1, 9, 4, 4))
    assert not network._forward_pre_hooks
    weight = torch.randn(64, 64, requires_grad=True)
    product = functional.linear(torch.ones(64, 64), weight).square()
    product.sum().backward()
    assert room.ledger.tensors == 0


def test_runs_are_repeatable_and_dither_is_not_the_same_every_pass() -> None:
    network = make_network()
    found = []
    room = FixedRoom(network, fixed("convolution", "range", 0.1), seed=5)
    for _ in range(2):
        network.zero_grad()
        with room:
            loss = network(X).square().mean()
        loss.backward()
        weight = network.get_parameter("3.weight")
        assert weight.grad is not None
        found.append(weight.grad.clone())
    assert not torch.equal(found[0], found[1])
    first, _ = gradients(fixed("convolution", "range", 0.1))
    again, _ = gradients(fixed("convolution", "range", 0.1))
    assert torch.equal(first["3.weight"], again["3.weight"])
