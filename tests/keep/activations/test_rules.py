"""The rules: what each of them holds to."""

from typing import Literal

import pytest
import torch
from torch import nn
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations import rules
from tests.keep.activations.models import make, run, train


@pytest.mark.parametrize("rule", ["comet", "certified"])
def test_only_inputs_of_layers_with_weights_are_encoded(
    rule: Literal["comet", "certified"],
) -> None:
    model, x, y = make("convolutional")
    room = er.Activations(model, rule=rule)
    train(model, torch.cat([x, x]), torch.cat([y, y]), room, 12)
    encoded = [row for row in room.ledger.rows if row.method == "encode"]
    assert encoded
    assert {row.error_class for row in encoded} == {"W"}
    assert all(row.gradient_error > 0 for row in encoded)


@pytest.mark.parametrize("of_view", [False, True])
def test_a_second_reader_that_hands_errors_on_gets_none(of_view: bool) -> None:
    """The first one is a layer with weights, whose errors stay in its own gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    factor = nn.Parameter(torch.randn(256, 64))
    x = torch.randn(256, 64)
    room = er.Activations(model, rule="certified", meter=0)
    for _ in range(5):
        with room:
            h = model[0](x)
            y = model[1](h)
            z = h.view(-1) * factor.view(-1) if of_view else h * factor
            loss = y.square().sum() + z.sum()
        model.zero_grad()
        factor.grad = None
        loss.backward()
    assert torch.equal(factor.grad, h.detach())  # pyright: ignore


@pytest.mark.parametrize("tolerance", [0.3, 0.02])
def test_certified_bound_holds_for_every_weight(tolerance: float) -> None:
    model, x, y = make("upward")
    room = er.Activations(model, rule="certified", tolerance=tolerance, refresh=1, meter=0)
    for _ in range(5):
        run(model, x, y, room)
    _, plain = run(model, x, y)
    _, ours = run(model, x, y, room)
    moved = 0.0
    for name, gradient in plain.items():
        if gradient.dim() > 1:
            size = float(gradient.square().mean().sqrt())
            error = float((gradient - ours[name]).abs().max())
            assert error <= tolerance * size * 1.05, name
            moved = max(moved, error / size)
    assert moved > 0


def test_comet_holds_the_standard_deviation() -> None:
    """Of the error of a layer's weight gradient, against its mean momentum."""
    model, x, y = make("upward")
    room = er.Activations(model, rule="comet", refresh=1, meter=0)
    for _ in range(8):
        run(model, x, y, room)
    _, plain = run(model, x, y)
    _, ours = run(model, x, y, room)
    name = "second.0.weight"
    error = float((plain[name] - ours[name]).std())
    # The batch stays the same, so that the momentum is the gradient.
    target = 0.01 * float(plain[name].abs().mean())
    assert target / 3 < error < target * 3


def test_rules_have_names() -> None:
    model, _, _ = make("upward")
    bad: object = "best"
    with pytest.raises(er.InvalidArgument, match="rule must be one of variance, comet, certified"):
        er.Activations(model, rule=bad)  # pyright: ignore[reportArgumentType]


def test_a_tighter_tolerance_means_a_smaller_error() -> None:
    errors = []
    for tolerance in (0.1, 0.01, 0.001):
        model, x, y = make("upward")
        room = er.Activations(model, tolerance=tolerance, meter=0)
        train(model, torch.cat([x, x]), torch.cat([y, y]), room, 17)
        model.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        plain = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        with room:
            loss = functional.cross_entropy(model(x), y)
        loss.backward()
        ours = [p.grad for p in model.parameters() if p.grad is not None]
        errors.append(sum(float((a - b).square().sum()) for a, b in zip(plain, ours, strict=True)))
    assert errors[0] > errors[1] > errors[2] > 0


def test_many_tensors_have_smaller_samples() -> None:
    assert [rules._stride(sites) for sites in (1, 16, 17, 32, 10_000)] == [1, 1, 1, 2, 4]
