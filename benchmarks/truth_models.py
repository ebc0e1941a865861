"""Networks whose mean gradient moves fast in their first steps, with data made up for them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A network in training."""

    network: nn.Module
    draw: Callable[[], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    optimizer: torch.optim.Optimizer


class Block(nn.Module):
    """Residual, with a time embedding, as in diffusion models."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(32, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Twice normalised, activated, convolved."""
        h = self.conv1(functional.silu(self.norm1(x))) + self.time(time)[..., None, None]
        return self.skip(x) + self.conv2(functional.silu(self.norm2(h)))


class Denoiser(nn.Module):
    """A small U-Net that predicts noise."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 32))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = Block(width, 2 * width)
        self.middle = Block(2 * width, 2 * width)
        self.up = Block(3 * width, width)
        self.norm, self.last = nn.GroupNorm(4, width), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Of images (N, 3, H, W) at times (N, 1)."""
        time = self.time(time)
        a = self.first(x)
        b = self.middle(self.down(functional.avg_pool2d(a, 2), time), time)
        a = self.up(torch.cat([a, functional.interpolate(b, scale_factor=2.0)], 1), time)
        return self.last(functional.silu(self.norm(a)))


class Segmenter(nn.Module):
    """A small U-Net with BatchNorm and ReLU."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()

        def layer(inputs: int, outputs: int) -> nn.Sequential:
            conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
            return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())

        self.first, self.second = layer(3, width), layer(width, 2 * width)
        self.up, self.third = nn.ConvTranspose2d(2 * width, width, 2, 2), layer(2 * width, width)
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a mask."""
        a = self.first(x)
        b = self.up(self.second(functional.max_pool2d(a, 2)))
        return self.last(self.third(torch.cat([a, b], 1)))


class Spectral(nn.Module):
    """A layer of a Fourier neural operator: complex weights for the lowest modes."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(
            torch.randn(width, width, modes, modes, dtype=torch.complex64) / width
        )
        self.around = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """By way of the frequencies."""
        frequencies = torch.fft.rfft2(x)
        low = frequencies[..., : self.modes, : self.modes]
        mixed = torch.einsum("bixy,ioxy->boxy", low, self.weight)
        rest = [0, frequencies.shape[-1] - self.modes, 0, frequencies.shape[-2] - self.modes]
        back = torch.fft.irfft2(functional.pad(mixed, rest), s=x.shape[-2:])
        return functional.gelu(back + self.around(x))


def fno(width: int = 24) -> nn.Module:
    """Of two layers."""
    layers = [Spectral(width, 8), Spectral(width, 8)]
    return nn.Sequential(nn.Conv2d(1, width, 1), *layers, nn.Conv2d(width, 1, 1))


class Attending(nn.Module):
    """A block of a transformer; queries, keys and values have a layer each."""

    def __init__(self, width: int, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then a layer for each position."""
        h = self.norm1(x)
        q, k, v = (f(h).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        h = functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + self.o(h.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A classifier of sequences, or a language model."""

    def __init__(self, width: int = 64, *, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.embed = nn.Embedding(64, width)
        self.places = nn.Parameter(0.02 * torch.randn(64, width))
        self.blocks = nn.Sequential(*[Attending(width, is_causal) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each position, or of the sequence."""
        x = self.norm(self.blocks(self.embed(tokens) + self.places))
        return self.head(x if self.is_causal else x.mean(1))


def _circles(count: int) -> tuple[Tensor, Tensor]:
    line = torch.linspace(-1, 1, 32)
    centre = 0.6 * (2 * torch.rand(count, 2, 1, 1) - 1)
    radius = 0.2 + 0.3 * torch.rand(count, 1, 1)
    mask = (line[:, None] - centre[:, 0]) ** 2 + (line - centre[:, 1]) ** 2 < radius**2
    mask = mask[:, None].float()
    return mask + 0.5 * torch.randn(count, 3, 32, 32), mask


def diffusion() -> Subject:
    """Noise prediction."""
    network = Denoiser()

    def draw() -> Batch:
        image, _ = _circles(16)
        time, noise = torch.rand(16, 1), torch.randn(16, 3, 32, 32)
        share = time[..., None, None]
        return (1 - share).sqrt() * image + share.sqrt() * noise, time, noise

    def loss(network: nn.Module, batch: Batch) -> Tensor:
        return functional.mse_loss(network(*batch[:2]), batch[2])

    return Subject(
        network=network,
        draw=draw,
        loss=loss,
        optimizer=torch.optim.AdamW(network.parameters(), 1e-3),
    )


def dice() -> Subject:
    """Segmentation: the loss is a ratio of sums."""
    network = Segmenter()

    def loss(network: nn.Module, batch: Batch) -> Tensor:
        found = network(batch[0]).sigmoid()
        both = (found * batch[1]).sum((1, 2, 3))
        return 1 - (2 * both / (found.sum((1, 2, 3)) + batch[1].sum((1, 2, 3)))).mean()

    return Subject(
        network=network,
        draw=lambda: _circles(16),
        loss=loss,
        optimizer=torch.optim.Adam(network.parameters(), 3e-3),
    )


def operator() -> Subject:
    """A Fourier neural operator that learns to smooth."""
    network = fno()

    def draw() -> Batch:
        x = torch.randn(16, 1, 32, 32)
        frequencies = torch.fft.fftfreq(32).square()
        decay = (-200 * (frequencies[:, None] + frequencies)).exp()
        return x, 4 * torch.fft.ifft2(torch.fft.fft2(x) * decay).real

    def loss(network: nn.Module, batch: Batch) -> Tensor:
        return functional.mse_loss(network(batch[0]), batch[1])

    return Subject(
        network=network,
        draw=draw,
        loss=loss,
        optimizer=torch.optim.Adam(network.parameters(), 2e-3),
    )


def _of_tokens(is_causal: bool) -> Subject:
    network = Transformer(is_causal=is_causal)

    def draw() -> Batch:
        start, stride = torch.randint(64, (32, 1)), torch.randint(1, 4, (32, 1))
        x = (start + stride * torch.arange(65)) % 64
        x = torch.where(torch.rand(x.shape) < 0.1, torch.randint(64, x.shape), x)
        return (x[:, :-1], x[:, 1:]) if is_causal else (x[:, :-1], stride[:, 0])

    def loss(network: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(network(batch[0]).flatten(0, -2), batch[1].flatten())

    return Subject(
        network=network,
        draw=draw,
        loss=loss,
        optimizer=torch.optim.AdamW(network.parameters(), 1e-3),
    )


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "diffusion": diffusion,
    "dice": dice,
    "fno": operator,
    "classifier": lambda: _of_tokens(False),
    "gpt": lambda: _of_tokens(True),
}
