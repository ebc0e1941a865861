"""The first passes of a training: is the gradient's error what the room says it is?

Networks whose mean gradient moves fast at the start train with a room at its default tolerance. At
passes among the first forty the gradient of the batch is computed exactly and with compression,
and the variance over other batches at the same weights. Errors are shares of that variance: as the
room predicts them, as its meter last read them, and in truth, of the whole gradient and of every
parameter by itself.
"""

import argparse
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er

Batch = tuple[Any, ...]

# A gradient that is zero but for rounding has no variance to speak of.
LEAST_SHARE = 1e-9


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


@dataclass(frozen=True, kw_only=True)
class Point:
    """One pass; errors are shares of the variance over other batches at the same weights."""

    network: str
    step: int
    predicted: float
    read: float | None
    """By the meter, the last time."""

    true: float
    variance: float
    """As the room estimates it, over the true one."""

    worst: float
    """Of all parameters: error over the parameter's own variance."""

    worst_name: str
    above: int
    """Parameters whose error is above three times their own share of the tolerance."""

    parameters: int
    ratio: float


class Bench:
    """Trains a subject and compares on the way."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        torch.manual_seed(options.seed)
        self._name, self._others, self._tolerance = name, options.batches, options.tolerance
        self._subject = SUBJECTS[name]()
        self._room = er.Activations(
            self._subject.network,
            tolerance=options.tolerance,
            optimizer=self._subject.optimizer if options.informed else None,
        )

    def run(self, steps: int, every: int) -> list[Point]:
        """The first passes."""
        points: list[Point] = []
        for step in range(1, steps + 1):
            batch = self._subject.draw()
            with self._room:
                loss = self._subject.loss(self._subject.network, batch)
            self._subject.optimizer.zero_grad()
            loss.backward()
            if step >= 3 and (step <= 8 or step % every == 0):
                point = self._compare(step, batch)
                points += [] if point is None else [point]
            self._subject.optimizer.step()
        return points

    def _compare(self, step: int, batch: Batch) -> Point | None:
        network, room = self._subject.network, self._room
        names = [name for name, p in network.named_parameters() if p.requires_grad]
        was, room._measuring = room._measuring, True
        with torch.random.fork_rng(devices=[]):
            exact = self._gradient(batch, nullcontext())
            others = [
                self._gradient(self._subject.draw(), nullcontext()) for _ in range(self._others)
            ]
            with room._trial():
                lossy = self._gradient(batch, room._retry(1.0))
        room._measuring = was
        errors = [float((a - b).abs().square().sum()) for a, b in zip(exact, lossy, strict=True)]
        truth = [
            float(
                torch.stack([torch.view_as_real(g) if g.is_complex() else g for g in one])
                .var(0)
                .sum()
            )
            for one in zip(*others, strict=True)
        ]
        names_kept = {row.name for row in room.ledger.rows if row.bound > 0}
        predicted = sum(
            s.share for s in room._sites if s.name in names_kept and s.bound is not None
        )
        if not predicted > 0:
            return None
        estimate = sum(room._noise.variance(p) or 0.0 for p in network.parameters())
        least = LEAST_SHARE * sum(truth)
        worst = max(
            (error / variance, name)
            for error, variance, name in zip(errors, truth, names, strict=True)
            if variance > least
        )
        above = sum(
            error > 3 * self._tolerance * variance and variance > least
            for error, variance in zip(errors, truth, strict=True)
        )
        readings = room.ledger.readings
        return Point(
            network=self._name,
            step=step,
            predicted=predicted,
            read=readings[-1].measured if readings else None,
            true=sum(errors) / sum(truth),
            variance=estimate / sum(truth),
            worst=worst[0],
            worst_name=worst[1],
            above=above,
            parameters=len(names),
            ratio=room.ledger.ratio,
        )

    def _gradient(self, batch: Batch, around: Any) -> list[Tensor]:
        network = self._subject.network
        buffers = [b.detach().clone() for b in network.buffers()]
        with around:
            loss = self._subject.loss(network, batch)
        found = torch.autograd.grad(loss, [p for p in network.parameters() if p.requires_grad])
        with torch.no_grad():
            for buffer, value in zip(network.buffers(), buffers, strict=True):
                buffer.copy_(value)
        return list(found)


def summarise(points: list[Point], tolerance: float) -> str:
    """A row of the table."""
    off = [point.predicted / point.true for point in points]
    within = sum(0.5 <= each <= 2 for each in off)
    worst = max(points, key=lambda point: point.worst)
    return (
        f"| {points[0].network} | {median(p.variance for p in points):.2f} | {median(off):.2f} | "
        f"{within} of {len(points)} | {min(off):.2f} to {max(off):.2f} | "
        f"{max(p.true for p in points):.3f} | {worst.worst:.3f} ({worst.worst_name}) | "
        f"{max(p.above for p in points)} of {points[0].parameters} | "
        f"{points[-1].ratio:.1f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", choices=[*SUBJECTS, []], default=[])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=4, help="passes between two comparisons")
    parser.add_argument("--batches", type=int, default=16, help="other batches, for the variance")
    parser.add_argument("--tolerance", type=float, default=0.1)
    parser.add_argument("--informed", action="store_true", help="the room knows the optimizer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="every comparison, one a line")
    options = parser.parse_args()
    if not options.json:
        print(
            "| network | variance | predicted / true | within 2x | range | largest error | "
            "worst parameter | above 3x | ratio |\n|---|---:|---:|---|---|---:|---|---|---:|"
        )
    for name in options.networks or SUBJECTS:
        points = Bench(name, options).run(options.steps, options.every)
        if options.json:
            for point in points:
                print(json.dumps(asdict(point)), flush=True)
        else:
            print(summarise(points, options.tolerance), flush=True)


if __name__ == "__main__":
    main()
