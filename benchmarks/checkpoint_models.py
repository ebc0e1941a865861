"""A training whose state is saved: a language model of a given size, and what Adam has of it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass
class Training:
    """A network that learns from made-up sentences."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: int
    length: int = 32
    words: int = 4096

    def step(self) -> float:
        """One step; every parameter changes."""
        words = torch.randint(0, self.words, (self.batch, self.length + 1))
        found = self.model(words[:, :-1])
        loss = functional.cross_entropy(found.flatten(0, 1), words[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @property
    def nbytes(self) -> int:
        """Of parameters and moments."""
        return 3 * sum(parameter.nbytes for parameter in self.model.parameters())


class Language(nn.Module):
    """Embedding, blocks, and a head."""

    def __init__(self, width: int, depth: int, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        """What comes next, for every word."""
        return self.head(self.blocks(self.embedding(words)))


def make(megabytes: int, batch: int = 4, words: int = 4096) -> Training:
    """A training whose parameters and moments take about so much."""
    torch.manual_seed(0)
    width = 512
    block_bytes = 3 * 4 * 12 * width * width
    rest_bytes = 3 * 4 * 2 * words * width
    depth = max(1, round((megabytes * 1e6 - rest_bytes) / block_bytes))
    model = Language(width, depth, words)
    training = Training(model, torch.optim.AdamW(model.parameters(), 1e-4), batch, words=words)
    training.step()  # moments are there from the first step on
    return training
