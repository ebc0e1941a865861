"""Recurrent layers run again for their workspace: same gradients, a fraction of the memory."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er


def gradients(
    layer: nn.Module, x: Any, room: er.Activations | None, cast: torch.dtype | None = None
) -> list[Tensor]:
    layer.zero_grad()
    torch.manual_seed(3)
    outer: AbstractContextManager[Any] = nullcontext() if room is None else room
    with outer, torch.autocast("cpu", cast or torch.bfloat16, enabled=cast is not None):
        out = layer(x)[0]
        out = out.data if isinstance(out, nn.utils.rnn.PackedSequence) else out
        loss = out.float().square().sum()
    loss.backward()
    return [p.grad.clone() for p in layer.parameters() if p.grad is not None]


LAYERS: dict[str, Callable[[], nn.LSTM]] = {
    "plain": lambda: nn.LSTM(48, 64, 2),
    "both ways": lambda: nn.LSTM(48, 64, 2, bidirectional=True),
    "dropout": lambda: nn.LSTM(48, 64, 2, dropout=0.3),
    "no bias": lambda: nn.LSTM(48, 64, 2, bias=False),
    "batch first": lambda: nn.LSTM(48, 64, 2, batch_first=True),
}


@pytest.mark.parametrize("cast", [None, torch.bfloat16])
@pytest.mark.parametrize("name", LAYERS)
def test_exact_mode_gives_the_same_bits_in_a_fraction(name: str, cast: torch.dtype | None) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    x = torch.randn(40, 32, 48)
    plain = gradients(layer, x, None, cast)
    room = er.Activations(layer, tolerance=0)
    kept = gradients(layer, x, room, cast)
    assert all(torch.equal(a, b) for a, b in zip(plain, kept, strict=True))
    assert room.ledger.ratio > 5


def test_sequences_of_several_lengths() -> None:
    torch.manual_seed(0)
    layer = nn.LSTM(48, 64)
    lengths = torch.arange(40, 8, -1)
    x = nn.utils.rnn.pack_padded_sequence(torch.randn(40, 32, 48), lengths)
    plain = gradients(layer, x, None)
    kept = gradients(layer, x, er.Activations(layer, tolerance=0))
    assert all(torch.equal(a, b) for a, b in zip(plain, kept, strict=True))


@pytest.mark.parametrize("is_cast", [False, True])
def test_a_second_backward_and_a_change_in_place(is_cast: bool) -> None:
    """Also inside of autocast, which must cast nothing anew."""
    torch.manual_seed(0)
    layer = nn.LSTM(48, 64)
    x = torch.randn(40, 32, 48)
    plain = gradients(layer, x, None)
    layer.zero_grad()
    with er.Activations(layer, tolerance=0):
        loss = layer(x)[0].square().sum()
    with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
    kept = [p.grad / 2 for p in layer.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(plain, kept, strict=True))
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_workspace_is_not_held() -> None:
    torch.manual_seed(0)
    layer = nn.LSTM(48, 64)
    room = er.Activations(layer)
    with room:
        loss = layer(torch.randn(40, 32, 48))[0].square().sum()
    held = [row for row in room.ledger.rows if "MkldnnRnnLayer.result3" in row.readers]
    assert [row.method for row in held] == ["derive"]
    assert sum(row.kept_bytes for row in held) == 0
    assert held[0].saved_bytes > 10 * 40 * 32 * 64 * 4
    loss.backward()
