"""Residual networks (He et al., 2016): the standard ones for 224 pixels, small ones for 32.

Submodules have the names that published weights use.
"""

from typing import Literal

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 beside a shortcut; the stride is in the middle."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(channels, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def _shortcut(channels: int, width: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and channels == width:
        return None
    return nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))


class ResNet(nn.Module):
    """Stages of residual blocks; each but the first halves the resolution."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: tuple[int, ...],
        widths: tuple[int, ...],
        *,
        stem: Literal["large", "small"],
        channels: int = 3,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        if stem == "large":  # a quarter of the resolution before the first block
            self.conv1 = nn.Conv2d(channels, widths[0], 7, 2, padding=3, bias=False)
            self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        else:
            self.conv1 = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
            self.maxpool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU()
        self.stages = len(widths)
        inside = widths[0]
        for number, (count, width) in enumerate(zip(blocks, widths, strict=True), 1):
            layers: list[nn.Module] = []
            for index in range(count):
                stride = 2 if number > 1 and index == 0 else 1
                layers.append(block(inside, width, stride))
                inside = width * block.expansion
            self.add_module(f"layer{number}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inside, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return a logit for every class."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return self.fc(self.avgpool(x).flatten(1))


def resnet18(*, classes: int = 1000, channels: int = 3) -> ResNet:
    """Return ResNet-18 for 224 pixels."""
    widths = (64, 128, 256, 512)
    return ResNet(
        BasicBlock, (2, 2, 2, 2), widths, stem="large", channels=channels, classes=classes
    )


def resnet50(*, classes: int = 1000, channels: int = 3) -> ResNet:
    """Return ResNet-50 for 224 pixels."""
    widths = (64, 128, 256, 512)
    return ResNet(
        Bottleneck, (3, 4, 6, 3), widths, stem="large", channels=channels, classes=classes
    )


def resnet_small(
    *,
    widths: tuple[int, ...] = (16, 32, 64),
    blocks: int = 3,
    classes: int = 10,
    channels: int = 3,
) -> ResNet:
    """Return a network for 32 pixels; the default is ResNet-20 with projected shortcuts."""
    counts = (blocks,) * len(widths)
    return ResNet(BasicBlock, counts, widths, stem="small", channels=channels, classes=classes)
