"""The vision transformer (Dosovitskiy et al., 2021)."""

import torch
from torch import Tensor, nn

from elbowroom.errors import InvalidArgument
from elbowroom.science.transformer import Block, initialise


class ViT(nn.Module):
    """Cut an image into patches, and classify it by a token that attends to all of them."""

    def __init__(
        self,
        *,
        pixels: int,
        patch: int,
        width: int,
        layers: int,
        heads: int,
        classes: int,
        channels: int = 3,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if pixels % patch:
            raise InvalidArgument(f"patches of {patch} do not fill {pixels} pixels")
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (pixels // patch) ** 2 + 1, width) * 0.02)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *(Block(width, heads, causal=False, dropout=dropout) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        initialise(self, layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return a logit for every class."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.position
        return self.head(self.norm(self.blocks(self.dropout(x)))[:, 0])


def vit_small(*, classes: int = 1000, pixels: int = 224, dropout: float = 0.0) -> ViT:
    """Return ViT-S/16."""
    return ViT(
        pixels=pixels,
        patch=16,
        width=384,
        layers=12,
        heads=6,
        classes=classes,
        dropout=dropout,
    )


def vit_cifar(
    *,
    classes: int = 10,
    pixels: int = 32,
    patch: int = 4,
    width: int = 128,
    layers: int = 6,
    channels: int = 3,
    dropout: float = 0.0,
) -> ViT:
    """Return a small transformer for small images; a head has 32 numbers."""
    return ViT(
        pixels=pixels,
        patch=patch,
        width=width,
        layers=layers,
        heads=max(1, width // 32),
        classes=classes,
        channels=channels,
        dropout=dropout,
    )
