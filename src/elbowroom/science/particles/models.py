"""A convolutional network for jet images, and a perceptron for tables."""

from torch import Tensor, nn


class JetCNN(nn.Module):
    """Stages of two convolutions with batch normalisation and ReLU; each halves the image."""

    def __init__(
        self, *, channels: int = 1, widths: tuple[int, ...] = (16, 32, 64), dropout: float = 0.2
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in widths:
            for inside in (channels, width):
                layers += [
                    nn.Conv2d(inside, width, 3, padding=1, bias=False),
                    nn.BatchNorm2d(width),
                    nn.ReLU(),
                ]
            layers.append(nn.MaxPool2d(2))
            channels = width
        self.stages = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return one logit an image."""
        return self.head(self.dropout(self.pool(self.stages(x)).flatten(1)))[:, 0]


class Perceptron(nn.Module):
    """Linear layers with batch normalisation and ReLU between them."""

    def __init__(
        self, *, features: int, width: int = 128, layers: int = 3, dropout: float = 0.1
    ) -> None:
        super().__init__()
        hidden: list[nn.Module] = []
        for _ in range(layers):
            hidden += [
                nn.Linear(features, width),
                nn.BatchNorm1d(width),
                nn.ReLU(),
                nn.Dropout(dropout),
            ]
            features = width
        self.hidden = nn.Sequential(*hidden)
        self.head = nn.Linear(features, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return one logit a row."""
        return self.head(self.hidden(x))[:, 0]
