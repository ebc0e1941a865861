"""Small models that save what real ones save."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.down = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.down(x))


def convolutional(classes: int = 10) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Residual(16, 32),
        Residual(32, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


class Block(nn.Module):
    def __init__(self, width: int, heads: int, drop: float, explicit: bool) -> None:
        super().__init__()
        self.heads, self.explicit = heads, explicit
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.explicit:
            weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1)
            mixed = self.drop(weights) @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, time, width)))
        return x + self.drop(self.down(self.drop(functional.gelu(self.up(self.norm2(x))))))


class Transformer(nn.Module):
    def __init__(
        self, *, vocabulary: int = 64, width: int = 64, drop: float = 0.1, explicit: bool = False
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*[Block(width, 4, drop, explicit) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(tokens)))).transpose(1, 2)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 48)
        self.cell = kind(48, 64, num_layers=2, batch_first=True)
        self.head = nn.Linear(64, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.cell(self.embed(tokens))[0]).transpose(1, 2)


class Upward(nn.Module):
    """A U-Net in small: skip connections, biased transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.SiLU())
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.last = nn.Conv2d(32, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.second(functional.max_pool2d(a, 2))
        return self.last(torch.cat([a, self.up(b)], 1)).mean((2, 3))


def smooth() -> Any:
    """Functions of which backward reads values."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64), nn.Tanh())


def normed(width: int = 64) -> Any:
    """A normalisation, and a function of which backward reads a mask."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, 64), nn.ReLU()
    )


def loss_of(model: Any) -> tuple[Tensor, ...]:
    """Of a model from 64 features to some."""
    return (model(torch.randn(128, 64)).square().sum(),)


def images(batch: int = 16, size: int = 24) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 10, (batch,), generator=generator)
    x = torch.randn(batch, 3, size, size, generator=generator)
    return x + labels.view(-1, 1, 1, 1) / 5, labels


def tokens(batch: int = 16, time: int = 32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(6)
    x = torch.randint(0, 64, (batch, time), generator=generator)
    return x, (x + 1) % 64


MODELS = {
    "convolutional": (convolutional, images),
    "upward": (Upward, images),
    "transformer": (Transformer, tokens),
    "explicit attention": (lambda: Transformer(explicit=True), tokens),
    "lstm": (Recurrent, tokens),
    "gru": (lambda: Recurrent(nn.GRU), tokens),
}


def make(name: str) -> tuple[Any, Tensor, Tensor]:
    model, data = MODELS[name]
    torch.manual_seed(0)
    return model(), *data()


def run(model: Any, x: Tensor, y: Tensor, room: er.Activations | None = None):
    """Loss and gradients of one step with fixed random numbers."""
    torch.manual_seed(1)
    model.zero_grad(set_to_none=True)
    with room or nullcontext():
        loss = functional.cross_entropy(model(x), y)
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), gradients


def train(model: Any, x: Tensor, y: Tensor, room: er.Activations, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(step))[: len(x) // 2]
        now, target = x[order], y[order]
        with room:
            loss = functional.cross_entropy(model(now), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses
