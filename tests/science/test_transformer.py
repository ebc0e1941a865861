"""The transformer block: causal or not, and what its heads must be."""

import pytest
import torch

from elbowroom.errors import InvalidArgument
from elbowroom.science.training import seeded
from elbowroom.science.transformer import Block, SelfAttention


@pytest.mark.parametrize("causal", [True, False])
def test_a_causal_block_does_not_see_ahead(causal: bool) -> None:
    with seeded(0):
        block = Block(16, 2, causal=causal).eval()
        x = torch.randn(1, 6, 16)
    changed = x.clone()
    changed[:, 4:] = changed[:, 4:].flip(-1)
    before = torch.isclose(block(x)[:, :4], block(changed)[:, :4], atol=1e-6).all()
    assert bool(before) is causal


def test_attention_is_the_softmax_of_scores() -> None:
    with seeded(0):
        attention = SelfAttention(8, 2, causal=False, dropout=0.0)
        x = torch.randn(2, 5, 8)
    query, key, value = attention.qkv(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
    mixed = torch.softmax(query @ key.transpose(-2, -1) / 2, dim=-1) @ value
    expected = attention.project(mixed.transpose(1, 2).reshape(2, 5, 8))
    torch.testing.assert_close(attention(x), expected, rtol=1e-4, atol=1e-5)


def test_dropout_acts_in_training_alone() -> None:
    with seeded(0):
        block = Block(16, 2, causal=True, dropout=0.5)
        x = torch.randn(1, 6, 16)
        assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


def test_heads_divide_the_width() -> None:
    with pytest.raises(InvalidArgument, match="multiple of heads, got 10 and 3"):
        SelfAttention(10, 3, causal=True, dropout=0.0)
