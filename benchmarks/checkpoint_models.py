"""Trainings whose state is saved: language models of a given size, and what Adam has of them."""

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


class Adapted(nn.Linear):
    """A matrix that stays, and an update of low rank that learns (LoRA)."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__(width, width)
        self.down = nn.Parameter(torch.randn(rank, width) / width**0.5)
        self.up = nn.Parameter(torch.zeros(width, rank))

    def forward(self, input: Tensor) -> Tensor:
        """The product with both."""
        return super().forward(input) + input @ self.down.t() @ self.up.t()


class AdaptedBlock(nn.Module):
    """Attention whose four projections have updates, and two layers that have none."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.projections = nn.ModuleList(Adapted(width, rank) for _ in range(4))
        self.rest = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """One block of a transformer."""
        *inner, out = self.projections
        y = self.norms[0](x)
        heads = [layer(y).unflatten(-1, (-1, 64)).transpose(1, 2) for layer in inner]
        found = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + out(found.transpose(1, 2).flatten(2))
        return x + self.rest(self.norms[1](x))


def make_adapted(megabytes: int, rank: int = 8, words: int = 32768) -> Training:
    """A transformer as wide as the small GPT-2 of which only updates of attention learn."""
    torch.manual_seed(0)
    width = 768
    rest_bytes, block_bytes = 4 * 2 * words * width, 4 * 12 * width * width
    depth = max(1, round((megabytes * 1e6 - rest_bytes) / block_bytes))
    blocks = [AdaptedBlock(width, rank) for _ in range(depth)]
    model = nn.Sequential(nn.Embedding(words, width), *blocks, nn.Linear(width, words))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith((".down", ".up")))
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    training = Training(model, torch.optim.AdamW(learning, 2e-4), 2, length=16, words=words)
    training.step()
    return training
