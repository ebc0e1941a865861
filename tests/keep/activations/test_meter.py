"""The meter: what it measures is what happens, and it is believed."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.keep.activations import rules


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.ReLU()
    )


def flat(model: Any, x: Tensor, room: Any = None) -> Tensor:
    model.zero_grad()
    if room is None:
        loss = model(x).square().sum()
    else:
        with room:
            loss = model(x).square().sum()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_parts_too_small_to_encode_are_measured_all_the_same() -> None:
    """An eighth of the batch is below the size at which tensors are encoded at all."""
    model = network()
    torch.manual_seed(3)
    room = er.Activations(model)
    for x in torch.randn(8, 128, 64):
        flat(model, x, room)
    assert room.ledger.readings
    assert all(reading.measured > 0 for reading in room.ledger.readings)


def test_an_error_above_the_tolerance_is_brought_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large gradients that hardly vary, through a bent function: the closed form is too hopeful.

    It shows where the tolerance is spent to its end.
    """
    monkeypatch.setattr(rules, "WORTH", 0.0)
    monkeypatch.setattr(rules, "NOISY", math.inf)
    monkeypatch.setattr(rules, "EACH", math.inf)
    model = network()
    torch.manual_seed(3)
    batches = torch.randn(48, 128, 64)
    plain = torch.stack([flat(model, x) for x in batches])
    variance = float(plain.var(0).sum())
    room = er.Activations(model)
    errors = [
        float((flat(model, x, room) - g).square().sum()) / variance
        for x, g in zip(batches, plain, strict=True)
    ]
    assert any("bounds are now" in event for event in room.ledger.events)
    assert max(errors[34:]) < 0.3
    assert room.ledger.ratio > 4


def test_a_model_without_trainable_parameters_is_left_alone() -> None:
    model = network().requires_grad_(False)
    room = er.Activations(model)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(128, 64, requires_grad=True)
        with room:
            loss = model(x).square().sum()
        loss.backward()
        assert x.grad is not None
    assert not room.ledger.events
