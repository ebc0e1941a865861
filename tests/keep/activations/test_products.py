"""Outputs that are multiplied by a mask or a scale of any shape that broadcasts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations import observer
from elbowroom.keep.activations.derive import Derived
from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.growth import note_error
from tests.keep.activations.checking import error_of, gradients, nothing_is_left, same_bits

BEFORE: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "silu": functional.silu,
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "relu of layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]).relu(),
    "softmax": lambda x: x.softmax(-1),
    "gelu and dropout": lambda x: functional.dropout(functional.gelu(x), 0.2),
    "gelu, viewed": lambda x: functional.gelu(x.reshape(-1, 64)).view(x.shape),
}

MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "a number": lambda x: x * 0.3,
    "a tensor of one value": lambda x: x * torch.tensor(0.3, dtype=torch.float64),
    "a scale for each channel": lambda x: x * torch.linspace(0.5, 1, 64),
    "from the left": lambda x: torch.linspace(0.5, 1, 64) * x,
    "drop path": lambda x: x * torch.ones(8, 1, 1).bernoulli_(0.7),
    "a key mask": lambda x: x * (torch.arange(16)[:, None] < 9),
    "a mask of each key": lambda x: x * torch.rand(8, 16, 1).gt(0.3),
    "whole numbers": lambda x: x * torch.arange(64),
    "one more axis": lambda x: (x * torch.rand(2, 1, 1, 1).gt(0.1)).flatten(0, 1),
    "a larger mask": lambda x: (x[:, :, None] * torch.rand(8, 16, 3, 64).gt(0.3)).flatten(1, 2),
    "another type": lambda x: (x * torch.linspace(0.5, 1, 64, dtype=torch.float64)).float(),
    "two in a row": lambda x: x * torch.rand(16, 1).gt(0.3) * torch.linspace(0.5, 1, 64),
    "noise": lambda x: x * torch.randn_like(x),
    "noise for each sample": lambda x: x * torch.randn(8, 1, 64),
    "complex": lambda x: torch.view_as_real(x * torch.tensor(1j)).flatten(2)[..., :64].contiguous(),
}


def make_forward(before: str, mask: str) -> Callable[[Any], tuple[Tensor, ...]]:
    def forward(model: Any) -> tuple[Tensor, ...]:
        x = model[0](torch.randn(8, 16, 64))
        return (model[1](MASKS[mask](BEFORE[before](x))).square().mean(),)

    return forward


def make_model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("before", BEFORE)
def test_gradients_are_those_of_plain_training(before: str, mask: str) -> None:
    forward, model = make_forward(before, mask), make_model()
    plain = gradients(model, forward)
    exact = er.Activations(model, tolerance=0)
    assert same_bits(plain, gradients(model, forward, exact))
    nothing_is_left(exact)
    room = er.Activations(model)
    ours = [gradients(model, forward, room, seed=seed) for seed in range(1, 5)][-1]
    nothing_is_left(room)
    assert error_of(gradients(model, forward, seed=4), ours) < 0.1


@pytest.mark.parametrize(
    "mask",
    sorted(set(MASKS) - {"a number", "another type", "noise", "noise for each sample", "complex"}),
)
@pytest.mark.parametrize("before", ["gelu", "gelu, viewed", "layer_norm"])
def test_they_follow_from_what_is_kept(before: str, mask: str) -> None:
    model = make_model()
    room = er.Activations(model, tolerance=0)
    gradients(model, make_forward(before, mask), room)
    (row,) = (row for row in room.ledger.rows if row.saved_bytes >= 32768 and "1: " in row.name)
    assert (row.method, row.kept_bytes) == ("derive", 0)


@pytest.mark.parametrize("mask", ["a scale for each channel", "drop path", "two in a row"])
def test_errors_grow_by_the_mask(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they really do: the source is shaken, and what follows from it moves so much."""
    seen: list[tuple[float, float]] = []

    def watched(entry: Entry, records: Any) -> list[tuple[Entry, float]]:
        found = note_error(entry, records)
        if isinstance(entry.payload, Derived) and len(found) == 1:
            ((source, told),) = found
            x, derivation = source.values(), entry.payload.derivation
            plain = derivation.apply()
            noise = torch.randn_like(x).mul_(0.01)
            source.raw = x + noise
            moved = derivation.apply() - plain
            source.raw = None
            seen.append((told, float(moved.square().mean() / noise.square().mean())))
        return found

    monkeypatch.setattr(observer, "note_error", watched)
    model = make_model()
    forward = make_forward("layer_norm", mask)
    room = er.Activations(model, meter=0)
    for seed in range(3):
        gradients(model, forward, room, seed=seed)
    assert seen
    for told, found in seen:
        assert told == pytest.approx(found, rel=0.1)
