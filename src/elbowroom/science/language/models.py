"""Two language models: a GPT in the spirit of nanoGPT, and an LSTM."""

import torch
from torch import Tensor, nn

from elbowroom.errors import InvalidArgument
from elbowroom.science.transformer import Block, initialise


class GPT(nn.Module):
    """Predict the next symbol at every position from those before it."""

    def __init__(
        self,
        *,
        symbols: int,
        context: int,
        width: int,
        layers: int,
        heads: int,
        dropout: float = 0.0,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.context = context
        self.embed = nn.Embedding(symbols, width)
        self.position = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *(Block(width, heads, causal=True, dropout=dropout) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        initialise(self, layers)

    def forward(self, codes: Tensor) -> Tensor:
        """Return a logit for every symbol at every position."""
        length = codes.shape[1]
        if length > self.context:
            raise InvalidArgument(f"at most {self.context} symbols fit, got {length}")
        x = self.embed(codes) + self.position(torch.arange(length, device=codes.device))
        return self.head(self.norm(self.blocks(self.dropout(x))))


def gpt_mini(
    *,
    symbols: int = 8192,
    context: int = 256,
    width: int = 256,
    layers: int = 4,
    dropout: float = 0.0,
) -> GPT:
    """Return a small GPT with heads of 64 numbers."""
    heads = max(1, width // 64)
    return GPT(
        symbols=symbols,
        context=context,
        width=width,
        layers=layers,
        heads=heads,
        dropout=dropout,
    )


class LSTM(nn.Module):
    """Predict the next symbol from a state that is carried along."""

    def __init__(self, *, symbols: int, width: int, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.dropout = nn.Dropout(dropout)
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=between)
        self.head = nn.Linear(width, symbols)

    def forward(self, codes: Tensor) -> Tensor:
        """Return a logit for every symbol at every position."""
        states, _ = self.lstm(self.dropout(self.embed(codes)))
        return self.head(self.dropout(states))
