"""Language models: sizes, causality, and tied weights."""

import pytest
import torch
from torch import nn

from elbowroom.errors import InvalidArgument
from elbowroom.science.language.models import GPT, LSTM, gpt_mini
from elbowroom.science.training import seeded


def test_gpt_mini_is_the_one_of_the_measurements() -> None:
    network = gpt_mini()
    assert network.embed.weight.shape == (8192, 256)
    assert network.context == 256 and len(network.blocks) == 4
    assert network.head.weight is network.embed.weight
    blocks = 4 * (12 * 256**2 + 13 * 256)
    assert sum(p.numel() for p in network.parameters()) == (8192 + 256) * 256 + blocks + 512


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_the_future_is_not_seen(kind: str) -> None:
    with seeded(0):
        network: nn.Module = (
            gpt_mini(symbols=11, context=8, width=32, layers=2)
            if kind == "gpt"
            else LSTM(symbols=11, width=16)
        )
        codes = torch.randint(11, (2, 8))
    changed = codes.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    network.eval()
    before, after = network(codes), network(changed)
    assert before.shape == (2, 8, 11)
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(before[:, 5:], after[:, 5:], atol=1e-4)


def test_weights_can_be_apart() -> None:
    network = GPT(symbols=5, context=4, width=8, layers=1, heads=2, tied=False)
    assert network.head.weight is not network.embed.weight


def test_shorter_texts_fit_and_longer_do_not() -> None:
    network = gpt_mini(symbols=5, context=4, width=8, layers=1)
    assert network(torch.zeros(1, 2, dtype=torch.long)).shape == (1, 2, 5)
    with pytest.raises(InvalidArgument, match="at most 4 symbols fit, got 5"):
        network(torch.zeros(1, 5, dtype=torch.long))
