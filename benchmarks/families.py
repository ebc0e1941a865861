"""How many times less is kept of the networks of today, one small block a family.

    python benchmarks/families.py [name ...]

Prints the ledger's ratio at tolerance 0 and at the default, after a few passes: what plain autograd
saves, by what is held of it. Ratios do not depend on the machine.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er

PASSES = 6


class ByHandNorm(nn.Module):
    """RMSNorm as language models have it: in float32, whatever comes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class UnitNorm(nn.Module):
    """Rows of one length, then a gain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain, self.root = nn.Parameter(torch.ones(width)), width**0.5

    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=-1) * self.root * self.gain


class GatedMlp(nn.Module):
    """A gate that multiplies."""

    def __init__(self, width: int, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        self.down, self.function = nn.Linear(3 * width, width), function

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.function(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    """Grouped queries, with rotary positions."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, width = x.shape
        q = self.q(x).view(batch, rows, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(x).view(batch, rows, 2 * self.groups, self.size).transpose(1, 2).chunk(2, 1)
        angles = torch.arange(rows)[:, None] / 100 ** (torch.arange(self.size) % 4)
        cos, sin = angles.cos(), angles.sin()
        q, k = (t * cos + _turned(t) * sin for t in (q, k))
        times = self.heads // self.groups
        k, v = (_repeated(t, times) for t in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, rows, width))


def _turned(x: Tensor) -> Tensor:
    one, two = x.chunk(2, -1)
    return torch.cat((-two, one), -1)


def _repeated(x: Tensor, times: int) -> Tensor:
    batch, groups, rows, size = x.shape
    wide = x[:, :, None].expand(batch, groups, times, rows, size)
    return wide.reshape(batch, groups * times, rows, size)


class Residual(nn.Module):
    """What is added to its input."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Experts(nn.Module):
    """Each row goes to one of them, weighted by its score."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(GatedMlp(width, functional.silu) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        scores = self.router(flat).softmax(-1)
        weight, choice = scores.max(-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero().squeeze(1)
            found = expert(flat[rows]) * weight[rows, None]
            out = out.index_add(0, rows, found)
        return out.view_as(x)


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((2, 3), keepdim=True)
        return x * self.up(functional.silu(self.down(mean))).sigmoid()


class MiddleNorm(nn.LayerNorm):
    """LayerNorm over the channels of pictures."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class LayerScale(nn.Module):
    """A gain for each channel, last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


class Order(nn.Module):
    """Axes in another order."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.order)


class Modulated(nn.Module):
    """LayerNorm with a scale and a shift that depend on the sample."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.of_sample, self.linear = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self.of_sample(x[:, 0])[:, None].chunk(2, -1)
        return self.linear(self.norm(x) * (1 + scale) + shift)


def language(norm: Callable[[int], nn.Module], mlp: nn.Module, groups: int = 4) -> nn.Module:
    """Two blocks of a transformer."""
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        *(
            layer
            for _ in range(2)
            for layer in (
                Residual(norm(WIDTH), Attention(WIDTH, 4, groups)),
                Residual(norm(WIDTH), mlp),
            )
        ),
        norm(WIDTH),
        nn.Linear(WIDTH, WIDTH),
    )


def bottleneck(*, inplace: bool) -> nn.Module:
    """MBConv with a gate."""
    return nn.Sequential(
        nn.Conv2d(8, 16, 1),
        *(
            Residual(
                nn.Conv2d(16, 64, 1, bias=False),
                nn.BatchNorm2d(64),
                nn.SiLU(inplace=inplace),
                nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False),
                nn.BatchNorm2d(64),
                nn.SiLU(inplace=inplace),
                Gate(64),
                nn.Conv2d(64, 16, 1, bias=False),
                nn.BatchNorm2d(16),
            )
            for _ in range(2)
        ),
    )


def next_block() -> nn.Module:
    """ConvNeXt."""
    mlp = (nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), LayerScale(16))
    return nn.Sequential(
        nn.Conv2d(8, 16, 1),
        *(
            Residual(
                nn.Conv2d(16, 16, 7, padding=3, groups=16),
                Order(0, 2, 3, 1),
                nn.LayerNorm(16),
                *mlp,
                Order(0, 3, 1, 2),
            )
            for _ in range(2)
        ),
        MiddleNorm(16),
        nn.Conv2d(16, 16, 2, 2),
    )


def volume() -> nn.Module:
    """Of nnU-Net."""
    return nn.Sequential(
        *(
            layer
            for i in range(3)
            for layer in (
                nn.Conv3d(16 if i else 1, 16, 3, padding=1),
                nn.InstanceNorm3d(16, affine=True),
                nn.LeakyReLU(0.01, inplace=True),
            )
        ),
        nn.Conv3d(16, 2, 1),
    )


def diffusion() -> nn.Module:
    """GroupNorm, SiLU, convolution."""
    return nn.Sequential(
        nn.Conv2d(8, 32, 1),
        *(
            Residual(
                *(
                    layer
                    for _ in range(2)
                    for layer in (nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1))
                )
            )
            for _ in range(2)
        ),
    )


def residual_network() -> nn.Module:
    """Of two blocks, with pooling."""

    def block() -> nn.Module:
        first, second = (nn.Conv2d(32, 32, 3, padding=1, bias=False) for _ in range(2))
        norms = (nn.BatchNorm2d(32), nn.BatchNorm2d(32))
        return nn.Sequential(first, norms[0], nn.ReLU(inplace=True), second, norms[1])

    return nn.Sequential(
        nn.Conv2d(8, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Residual(block()),
        nn.ReLU(inplace=True),
        Residual(block()),
        nn.ReLU(inplace=True),
    )


def hard_bottleneck() -> nn.Module:
    """Of MobileNet."""
    return nn.Sequential(
        nn.Conv2d(8, 32, 1),
        nn.BatchNorm2d(32),
        nn.Hardswish(inplace=True),
        nn.Conv2d(32, 32, 3, padding=1, groups=32),
        nn.BatchNorm2d(32),
        nn.ReLU6(inplace=True),
        nn.Conv2d(32, 16, 1),
    )


WIDTH = 64


def rows() -> Tensor:
    """Of a text."""
    return torch.randn(8, 64, WIDTH)


def pictures() -> Tensor:
    """In the usual order."""
    return torch.randn(8, 8, 24, 24)


def last() -> Tensor:
    """Channels last."""
    return pictures().to(memory_format=torch.channels_last)


def scans() -> Tensor:
    """Of a body."""
    return torch.randn(2, 1, 24, 24, 24)


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "Llama: RMSNorm by hand, SwiGLU, rotary": (
        lambda: language(ByHandNorm, GatedMlp(WIDTH, functional.silu)),
        rows,
    ),
    "Qwen: fused RMSNorm, SwiGLU, grouped queries": (
        lambda: language(nn.RMSNorm, GatedMlp(WIDTH, functional.silu), groups=2),
        rows,
    ),
    "x-transformers: F.normalize, GeGLU": (
        lambda: language(UnitNorm, GatedMlp(WIDTH, functional.gelu)),
        rows,
    ),
    "GPT: LayerNorm, GELU": (
        lambda: language(
            nn.LayerNorm,
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)),
        ),
        rows,
    ),
    "mixture of experts": (lambda: language(ByHandNorm, Experts(WIDTH, 4)), rows),
    "DiT: modulated LayerNorm": (
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Modulated(WIDTH), Modulated(WIDTH)),
        rows,
    ),
    "EfficientNet: BatchNorm, SiLU, gates": (lambda: bottleneck(inplace=False), pictures),
    "EfficientNet, SiLU in place": (lambda: bottleneck(inplace=True), pictures),
    "EfficientNet, channels last": (lambda: bottleneck(inplace=True), last),
    "MobileNet: Hardswish, ReLU6 in place": (hard_bottleneck, pictures),
    "ConvNeXt: permuted LayerNorm, GELU, layer scale": (next_block, pictures),
    "ConvNeXt, channels last": (next_block, last),
    "ResNet: BatchNorm, ReLU in place": (residual_network, pictures),
    "ResNet, channels last": (residual_network, last),
    "nnU-Net: InstanceNorm, LeakyReLU in place": (volume, scans),
    "diffusion: GroupNorm, SiLU": (diffusion, pictures),
}


def ratio_of(make: Callable[[], nn.Module], inputs: Callable[[], Tensor], tolerance: float) -> Any:
    """Of the last of a few passes."""
    torch.manual_seed(0)
    model: Any = make()
    if not inputs().is_contiguous():
        model = model.to(memory_format=torch.channels_last)
    room = er.Activations(model, tolerance=tolerance, meter=0, overhead=None)
    for _ in range(PASSES):
        model.zero_grad()
        with room:
            loss = model(inputs()).square().mean()
        loss.backward()
    ledger = room.ledger
    room.close()
    return ledger


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only families with one of these in their name")
    parser.add_argument("--rows", action="store_true", help="each whole ledger")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'family':<50} {'tolerance 0':>12} {'default':>9}")
    for name, (make, inputs) in FAMILIES.items():
        if options.names and not any(part in name for part in options.names):
            continue
        found = [ratio_of(make, inputs, tolerance) for tolerance in (0.0, 0.1)]
        print(f"{name:<50} {found[0].ratio:>12.2f} {found[1].ratio:>9.1f}")
        if options.rows:
            print(*found, sep="\n\n")


if __name__ == "__main__":
    main()
