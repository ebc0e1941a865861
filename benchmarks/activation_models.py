"""Defines the three networks whose activations make up the benchmark set.

Every tensor worth dumping is the output of a named submodule, so that a forward hook can reach it.
For that reason no ReLU works in place and attention is spelled out rather than fused.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# PyTorch's unit-variance embeddings would swamp the blocks' early contributions.
EMBEDDING_STD = 0.1


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, each with batch norm, added to a shortcut and rectified."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(hidden)) + self.shortcut(x))


class ResNet(nn.Module):
    """Classify 32x32 images; stages halve the resolution and hold two blocks each."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 192), classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
        )
        self.stages = nn.ModuleList()
        in_channels = widths[0]
        for index, width in enumerate(widths):
            self.stages.append(
                nn.Sequential(
                    ResidualBlock(in_channels, width, stride=1 if index == 0 else 2),
                    ResidualBlock(width, width, stride=1),
                )
            )
            in_channels = width
        self.head = nn.Linear(in_channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean(dim=(2, 3)))


class DoubleConv(nn.Module):
    """Two conv-BN-ReLU layers at one U-Net resolution."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(x)))


class UNet(nn.Module):
    """Map fields to one logit per grid cell through an encoder, a decoder and skips."""

    def __init__(self, in_channels: int, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        self.encoder = nn.ModuleList()
        for width in widths:
            self.encoder.append(DoubleConv(in_channels, width))
            in_channels = width
        self.pool = nn.MaxPool2d(2)
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.decoder = nn.ModuleList()
        for width in reversed(widths[:-1]):
            self.decoder.append(DoubleConv(in_channels + width, width))
            in_channels = width
        self.head = nn.Conv2d(in_channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, block in enumerate(self.encoder):
            x = block(x if level == 0 else self.pool(x))
            skips.append(x)
        skips.pop()
        for block in self.decoder:
            x = block(torch.cat((self.upsample(x), skips.pop()), dim=1))
        return self.head(x)[:, 0]


class CausalAttention(nn.Module):
    """Multi-head attention that materialises its probabilities."""

    future: Tensor

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.softmax = nn.Softmax(dim=-1)
        # An identity gives the mixed values a name before the output projection blends the heads.
        self.mixed = nn.Identity()
        self.project = nn.Linear(width, width)
        future = torch.ones(context, context, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        qkv = self.qkv(x).view(samples, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
        scores = scores.masked_fill(self.future[:length, :length], float("-inf"))
        mixed = self.softmax(scores) @ value
        return self.project(self.mixed(mixed.transpose(1, 2).reshape(samples, length, width)))


class TransformerBlock(nn.Module):
    """Pre-LN block; its output is the residual stream."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, context)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.contract(self.gelu(self.expand(self.norm2(x))))


class Transformer(nn.Module):
    """Predict the next character at every position."""

    def __init__(
        self, symbols: int, context: int, width: int = 192, heads: int = 4, layers: int = 4
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.position = nn.Parameter(torch.randn(context, width) * EMBEDDING_STD)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads, context) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        nn.init.normal_(self.embed.weight, std=EMBEDDING_STD)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
