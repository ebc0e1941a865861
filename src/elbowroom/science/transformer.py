"""The transformer block that the language model and the vision transformer are made of."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from elbowroom.errors import InvalidArgument


class SelfAttention(nn.Module):
    """Multi-head attention by PyTorch's fused kernel."""

    def __init__(self, width: int, heads: int, *, causal: bool, dropout: float) -> None:
        super().__init__()
        if width % heads:
            raise InvalidArgument(f"the width must be a multiple of heads, got {width} and {heads}")
        self.heads = heads
        self.causal = causal
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the positions of samples x positions x width."""
        samples, positions, width = x.shape
        qkv = self.qkv(x).view(samples, positions, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        return self.project(mixed.transpose(1, 2).reshape(samples, positions, width))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each normalised before and added to its input."""

    def __init__(self, width: int, heads: int, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, causal=causal, dropout=dropout)
        self.dropout1 = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.contract = nn.Linear(4 * width, width)
        self.dropout2 = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after this block."""
        x = x + self.dropout1(self.attention(self.norm1(x)))
        return x + self.dropout2(self.contract(self.gelu(self.expand(self.norm2(x)))))


def initialise(network: nn.Module, layers: int) -> None:
    """Draw weights as GPT-2 does: small, and smaller where a block adds to the stream."""
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            adds = name.endswith(("project", "contract"))
            nn.init.normal_(module.weight, std=0.02 / (2 * layers) ** 0.5 if adds else 0.02)
        if isinstance(module, nn.Linear) and isinstance(module.bias, torch.Tensor):
            nn.init.zeros_(module.bias)
