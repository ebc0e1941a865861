"""Time against bytes: small networks with and without a room, for several overheads.

Each network trains plainly and in a room by turns, a step each, on the same batches; steps of one
turn are compared. The first forty count one by one, with their looks at the gradients; the steady
ratio is the median of the steps after them. Times are those of the clock, or of the processor
(--cpu) where others use the machine.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import elbowroom as er

FIRST = 40
SEED = 0


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.silu(self.down(F.adaptive_avg_pool2d(x, 1)), inplace=True)
        return x * torch.sigmoid(self.up(pooled))


class Gated(nn.Module):
    """A residual block with a gate, and SiLU in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.act, self.gate = nn.SiLU(inplace=True), Gate(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm1(self.conv1(x)))
        return self.act(x + self.gate(self.norm2(self.conv2(y))))


def gated() -> nn.Module:
    """A small network for CIFAR-10."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)]
    layers += [nn.SiLU(inplace=True), Gated(32)]
    for width in (32, 64):
        layers += [nn.Conv2d(width, 2 * width, 3, 2, 1, bias=False), nn.BatchNorm2d(2 * width)]
        layers += [nn.SiLU(inplace=True), Gated(2 * width)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


class Residual(nn.Module):
    """As in ResNet-18."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.short = nn.Conv2d(width, out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


def resnet() -> nn.Module:
    """ResNet-18 in small."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)]
    layers += [nn.ReLU(), Residual(16, 16, 1)]
    for width in (16, 32, 64):
        layers += [Residual(width, 2 * width, 2), Residual(2 * width, 2 * width, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


class Block(nn.Module):
    """Of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        qkv = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(1000, 128), nn.Embedding(128, 128)
        self.blocks = nn.Sequential(*(Block(128, 4) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 1000)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        logits = self.head(self.norm(self.blocks(self.words(x) + self.places(places))))
        return logits.transpose(1, 2)


class Loop(nn.Module):
    """Two cells over many steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(1, 51), nn.LSTMCell(51, 51)
        self.out = nn.Linear(51, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = b = c = d = torch.zeros(x.shape[0], 51)
        found: list[Tensor] = []
        for column in x.split(1, dim=1):
            a, b = self.first(column, (a, b))
            c, d = self.second(a, (c, d))
            found.append(self.out(c))
        return torch.cat(found, dim=1)


class UNet(nn.Module):
    """Three levels."""

    def __init__(self) -> None:
        super().__init__()
        widths = (16, 32, 64)
        self.down = nn.ModuleList(
            self._two(a, b) for a, b in zip((3, *widths), widths, strict=False)
        )
        self.up = nn.ModuleList(self._two(a + b, a) for a, b in ((32, 64), (16, 32)))
        self.out = nn.Conv2d(16, 4, 1)

    def _two(self, width: int, out: int) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()),
            *(nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for place, part in enumerate(self.down):
            x = part(x if place == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for part, skip in zip(self.up, kept[-2::-1], strict=True):
            x = part(torch.cat([F.interpolate(x, scale_factor=2.0), skip], dim=1))
        return self.out(x)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A network and what it learns from."""

    make: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy


def pictures(count: int, pixels: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """Made-up pictures of ten kinds."""
    return lambda: (torch.randn(count, 3, pixels, pixels), torch.randint(0, 10, (count,)))


CASES = {
    "gated": Case(make=gated, batch=pictures(128, 32)),
    "resnet": Case(make=resnet, batch=pictures(64, 32)),
    "gpt": Case(
        make=Gpt,
        batch=lambda: (torch.randint(0, 1000, (8, 128)), torch.randint(0, 1000, (8, 128))),
    ),
    "loop": Case(
        make=Loop, batch=lambda: (torch.randn(97, 200), torch.randn(97, 200)), loss=F.mse_loss
    ),
    "unet": Case(
        make=UNet, batch=lambda: (torch.randn(4, 3, 96, 96), torch.randint(0, 4, (4, 96, 96)))
    ),
}


def measure(case: Case, steps: int, clock: Callable[[], float], **options: Any) -> dict[str, Any]:
    """Ratios of time and bytes."""
    torch.manual_seed(SEED)
    plain = case.make()
    ours = copy.deepcopy(plain)
    room = er.Activations(ours, **options)
    optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in (plain, ours)]

    def step(which: int, x: Tensor, target: Tensor) -> float:
        start = clock()
        if which:
            with room:
                loss = case.loss(ours(x), target)
        else:
            loss = case.loss(plain(x), target)
        loss.backward()
        optimizers[which].step()
        optimizers[which].zero_grad()
        return clock() - start

    times: list[tuple[float, float]] = []
    bytes_ratios: list[float] = []
    for _ in range(steps):
        x, target = case.batch()
        times.append((step(0, x, target), step(1, x, target)))
        bytes_ratios.append(room.ledger.ratio)
    first, rest = times[:FIRST], times[FIRST:] or times[-10:]
    found = {
        "first": sum(b for _, b in first) / sum(a for a, _ in first),
        "first_worst": max(b for _, b in first[1:]) / statistics.median(a for a, _ in first),
        "steady": statistics.median(b / a for a, b in rest),
        "plain_s": statistics.median(a for a, _ in times),
        "bytes_ratio": statistics.median(bytes_ratios[FIRST:] or bytes_ratios[-10:]),
        "told": room.ledger.slowdown,
    }
    room.close()
    return found


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(CASES))
    parser.add_argument("--overheads", default="0.1,0.25,0.5,none")
    parser.add_argument("--tolerance", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--cpu", action="store_true", help="processor time")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    clock = time.process_time if given.cpu else time.perf_counter
    for name in given.networks:
        for word in given.overheads.split(","):
            found = measure(
                CASES[name],
                given.steps,
                clock,
                overhead=None if word == "none" else float(word),
                tolerance=given.tolerance,
            )
            line = {"network": name, "overhead": word, **found}
            if given.json:
                print(json.dumps(line), flush=True)
                continue
            told = found["told"]
            print(
                f"{name:8} overhead {word:5} first {found['first']:.2f} "
                f"(worst step {found['first_worst']:.2f}) steady {found['steady']:.2f} "
                f"told {0 if told is None else 1 + told:.2f}, "
                f"bytes {found['bytes_ratio']:.1f}x, plain {found['plain_s'] * 1e3:.0f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
