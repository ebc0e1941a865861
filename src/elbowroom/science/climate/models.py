"""Networks that give every cell of a map its classes: a U-Net and a small DeepLab."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from elbowroom.errors import InvalidArgument
from elbowroom.science.vision.resnet import BasicBlock


class Block(nn.Sequential):
    """3x3 convolutions, each with batch normalisation and ReLU."""

    def __init__(self, channels: int, width: int, convolutions: int = 2) -> None:
        super().__init__()
        for _ in range(convolutions):
            self.append(nn.Conv2d(channels, width, 3, padding=1, bias=False))
            self.append(nn.BatchNorm2d(width))
            self.append(nn.ReLU())
            channels = width


class UNet(nn.Module):
    """An encoder, a decoder, and bridges between them at every resolution."""

    def __init__(
        self,
        *,
        channels: int,
        outputs: int,
        widths: tuple[int, ...] = (16, 32, 64, 128),
        dropout: float = 0.0,
        convolutions: int = 2,
    ) -> None:
        if convolutions < 1:
            raise InvalidArgument(f"a block has at least one convolution, got {convolutions}")
        super().__init__()
        self.encoder = nn.ModuleList()
        for width in widths:
            self.encoder.append(Block(channels, width, convolutions))
            channels = width
        self.pool = nn.MaxPool2d(2)
        self.rise = nn.ModuleList()
        self.decoder = nn.ModuleList()
        for width in reversed(widths[:-1]):
            self.rise.append(nn.ConvTranspose2d(channels, width, 2, 2))
            self.decoder.append(Block(2 * width, width, convolutions))
            channels = width
        self.dropout = nn.Dropout2d(dropout)
        self.head = nn.Conv2d(channels, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, samples x outputs x height x width."""
        parts = 2 ** (len(self.encoder) - 1)
        if x.shape[-2] % parts or x.shape[-1] % parts:
            raise InvalidArgument(
                f"height and width must be multiples of {parts}, got {tuple(x.shape[-2:])}"
            )
        bridges: list[Tensor] = []
        for level, block in enumerate(self.encoder):
            x = block(x if level == 0 else self.pool(x))
            bridges.append(x)
        bridges.pop()
        for rise, block in zip(self.rise, self.decoder, strict=True):
            x = block(torch.cat([bridges.pop(), rise(x)], dim=1))
        return self.head(self.dropout(x))


class DeepLab(nn.Module):
    """Residual blocks, dilated convolutions side by side, and a decoder (after DeepLab v3+)."""

    def __init__(
        self,
        *,
        channels: int,
        outputs: int,
        widths: tuple[int, int, int] = (24, 48, 96),
        dilations: tuple[int, ...] = (2, 4, 8),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        fine, middle, coarse = widths
        self.stem = _convolve(channels, fine, 3)
        self.halves = nn.Sequential(BasicBlock(fine, middle, 2), BasicBlock(middle, middle, 1))
        self.quarters = nn.Sequential(BasicBlock(middle, coarse, 2), BasicBlock(coarse, coarse, 1))
        self.rates = nn.ModuleList(
            [
                _convolve(coarse, middle, 1),
                *(_convolve(coarse, middle, 3, dilation) for dilation in dilations),
            ]
        )
        # One value a channel: batch normalisation would have nothing to normalise over.
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(coarse, middle, 1), nn.ReLU())
        self.join = _convolve(middle * (len(dilations) + 2), coarse, 1)
        self.bridge = _convolve(fine, fine, 1)
        self.decoder = Block(coarse + fine, middle)
        self.dropout = nn.Dropout2d(dropout)
        self.head = nn.Conv2d(middle, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, samples x outputs x height x width."""
        fine = self.stem(x)
        x = self.quarters(self.halves(fine))
        whole = self.whole(x).expand(-1, -1, *x.shape[-2:])
        x = self.join(torch.cat([*(rate(x) for rate in self.rates), whole], dim=1))
        x = functional.interpolate(x, fine.shape[-2:], mode="bilinear", align_corners=False)
        x = self.decoder(torch.cat([x, self.bridge(fine)], dim=1))
        return self.head(self.dropout(x))


def _convolve(channels: int, width: int, kernel: int, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (kernel - 1) // 2
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel, padding=padding, dilation=dilation, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    )
