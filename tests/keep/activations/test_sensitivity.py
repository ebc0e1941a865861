"""Closed forms against the truth: one kept tensor at a time, over many draws of its errors."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations.sites import Site

BATCH = 32
DRAWS = 6


class Applied(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Gated(nn.Module):
    """One half through a function, times the other."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate, self.up, self.function = nn.Linear(64, 64), nn.Linear(64, 64), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.gate(x)) * self.up(x)


class Attention(nn.Module):
    """Of four heads, by the fused kernel or step by step."""

    def __init__(self, *, is_fused: bool, is_causal: bool = False) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.is_fused, self.is_causal = is_fused, is_causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        if self.is_fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        else:
            mixed = (q @ k.transpose(-2, -1) / 4).softmax(-1) @ v
        return mixed.transpose(1, 2).reshape(x.shape)


class Last(nn.Module):
    """Outputs of a recurrent layer."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


def pictures(*layers: nn.Module) -> Any:
    """Between two convolutions, on smooth pictures."""
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *layers, nn.Conv2d(16, 4, 3)), smooth


def rows(*layers: nn.Module) -> Any:
    """Between two linear layers, on rows."""
    return nn.Sequential(nn.Linear(64, 64), *layers, nn.Linear(64, 8)), lambda: torch.randn(
        BATCH, 16, 64
    )


def flat(*layers: nn.Module) -> Any:
    """The same without positions."""
    return nn.Sequential(
        nn.Linear(64, 64), *layers, nn.Linear(64, 8)
    ), lambda: torch.randn(128, 64) * torch.linspace(0.2, 2, 64)


def smooth() -> Tensor:
    coarse = torch.randn(BATCH, 3, 4, 4) + torch.randn(BATCH, 1, 1, 1)
    return functional.interpolate(coarse, size=(16, 16), mode="bilinear")


def losses(scale: float) -> Any:
    """Over many classes, where a network is more or less sure of itself."""

    def loss(y: Tensor) -> Tensor:
        best = (y + y.roll(1, -1)).argmax(-1)
        return functional.cross_entropy(scale * y.transpose(1, 2), best, reduction="none")

    return nn.Sequential(nn.Linear(64, 512), Applied(loss)), lambda: torch.randn(BATCH, 16, 64)


def symbols() -> Tensor:
    return torch.randint(0, 32, (BATCH, 16))


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "convolution": (lambda: pictures(nn.ReLU()), "Convolution.input"),
    "grouped, dilated": (
        lambda: pictures(nn.ReLU(), nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=4)),
        "Convolution.input",
    ),
    "strided": (
        lambda: pictures(nn.ReLU(), nn.Conv2d(16, 16, 5, stride=2, padding=2)),
        "Convolution.input",
    ),
    "transposed": (
        lambda: pictures(nn.ReLU(), nn.ConvTranspose2d(16, 16, 2, 2)),
        "Convolution.input",
    ),
    "linear": (lambda: rows(nn.ReLU()), "Addmm.mat1"),
    "batch norm": (
        lambda: pictures(nn.BatchNorm2d(16), nn.ReLU()),
        "NativeBatchNorm.input",
    ),
    "batch norm behind another": (
        lambda: pictures(
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        ),
        "NativeBatchNorm.input",
    ),
    "batch norm of rows": (
        lambda: flat(nn.BatchNorm1d(64), nn.ReLU()),
        "NativeBatchNorm.input",
    ),
    "batch norm behind upsampling": (
        lambda: pictures(nn.ConvTranspose2d(16, 16, 2, 2), nn.BatchNorm2d(16), nn.ReLU()),
        "NativeBatchNorm.input",
    ),
    "layer norm": (lambda: rows(nn.LayerNorm(64)), "NativeLayerNorm.input"),
    "group norm": (
        lambda: pictures(nn.GroupNorm(4, 16), nn.ReLU()),
        "NativeGroupNorm.input",
    ),
    "instance norm by groups": (
        lambda: pictures(nn.GroupNorm(16, 16), nn.ReLU()),
        "NativeGroupNorm.input",
    ),
    "gelu": (lambda: rows(nn.GELU()), "Gelu.self"),
    "silu": (lambda: rows(nn.SiLU()), "Silu.self"),
    "tanh": (lambda: rows(nn.Tanh()), "Tanh.result"),
    "sigmoid": (lambda: rows(nn.Sigmoid()), "Sigmoid.result"),
    "exponential": (lambda: rows(Applied(torch.exp)), "Exp.result"),
    "power": (lambda: rows(Applied(lambda x: x**3)), "Pow.self"),
    "product with itself, turned": (
        lambda: rows(Applied(lambda x: x * x.roll(1, -1))),
        "Mul.other",
    ),
    "softmax": (lambda: rows(nn.Softmax(-1)), "Softmax.result"),
    "log softmax": (lambda: rows(nn.LogSoftmax(-1)), "LogSoftmax.result"),
    "log softmax of which only the exponential is read": (
        lambda: rows(nn.LogSoftmax(-1), Applied(lambda x: x + 1)),
        "LogSoftmax.result",
    ),
    "cross entropy": (lambda: losses(1.0), "CrossEntropy.logits"),
    "cross entropy of a network that is sure": (lambda: losses(6.0), "CrossEntropy.logits"),
    "attention": (lambda: rows(Attention(is_fused=True)), "FlashAttention"),
    "attention, causal": (
        lambda: rows(Attention(is_fused=True, is_causal=True)),
        "FlashAttention",
    ),
    "attention, step by step": (lambda: rows(Attention(is_fused=False)), "Bmm"),
    "lstm": (lambda: rows(Last(nn.LSTM(64, 64, batch_first=True))), "MkldnnRnnLayer.result0"),
    "embedding": (
        lambda: (
            nn.Sequential(nn.Embedding(32, 64), nn.GELU(), nn.Linear(64, 8)),
            symbols,
        ),
        "Gelu.self",
    ),
    "dropout": (lambda: rows(nn.GELU(), nn.Dropout(0.3)), "Gelu.self"),
    "rms norm": (lambda: rows(nn.RMSNorm(64)), "Pow.self"),
    "rows of one length": (
        lambda: rows(Applied(lambda x: 8 * functional.normalize(x, dim=-1))),
        "Div.self",
    ),
    "gated mlp": (lambda: rows(Gated(functional.silu)), "Silu.self"),
    "what a gate multiplies": (lambda: rows(Gated(functional.gelu)), "Mul.other"),
    "hardswish": (lambda: rows(nn.Hardswish()), "Hardswish.self"),
    "mish": (lambda: rows(nn.Mish()), "Mish.self"),
    "group norm, silu": (
        lambda: pictures(nn.GroupNorm(4, 16), nn.SiLU()),
        "NativeGroupNorm.input",
    ),
    "batch norm, silu": (
        lambda: pictures(nn.BatchNorm2d(16), nn.SiLU()),
        "NativeBatchNorm.input",
    ),
    "a gate for each channel": (
        lambda: pictures(Applied(lambda x: x * x.mean((2, 3), keepdim=True).sigmoid())),
        "Mul.self",
    ),
    "product that is added": (
        lambda: rows(Applied(lambda x: torch.baddbmm(x, x @ x.mT / 64, x))),
        "Baddbmm",
    ),
}

# Small layers with few weights: what errors do to them differs from draw to draw.
FACTORS = {
    "batch norm behind upsampling": 2.0,
    "group norm": 2.0,
    "instance norm by groups": 2.0,
    "log softmax": 2.0,
}


class Truth:
    """A room whose bounds follow from gradients, and the errors that they make."""

    def __init__(self, model: Any, draw: Callable[[], Tensor]) -> None:
        self.model, self.draw = model, draw
        self.room = er.Activations(model, refresh=1, meter=0)
        for seed in range(6):
            torch.manual_seed(seed)
            self.x = draw()
            self.gradient(self.room)

    def gradient(self, around: Any) -> list[Tensor]:
        torch.manual_seed(7)
        with around:
            y = self.model(self.x)
            goal = torch.randn(y.shape)
            loss = (y - goal).square().mean()
        return list(torch.autograd.grad(loss, list(self.model.parameters())))

    def sites(self, reader: str) -> list[Site]:
        rows = [r for r in self.room.ledger.rows if r.bound > 0]
        names = {r.name for r in rows if any(reader in text for text in r.readers)}
        return [site for site in self.room._sites if site.name in names]

    def ratio(self, sites: list[Site]) -> float:
        """Predicted over measured, with all else kept as it is."""
        policy: Any = self.room._policy
        pack = policy.pack
        policy.pack = lambda entry, tensor, *how: (
            pack(entry, tensor, *how) if entry.site in sites else None
        )
        plain = self.gradient(nullcontext())
        total = 0.0
        with self.room._trial():
            for seed in range(DRAWS):
                policy.seed = 1000 + seed
                ours = self.gradient(self.room._retry(1.0))
                total += sum(
                    float((a - b).square().sum()) for a, b in zip(plain, ours, strict=True)
                )
        variance = sum(self.room._noise.variance(p) or 0.0 for p in self.model.parameters())
        return sum(site.share for site in sites) * variance / (total / DRAWS)


@pytest.mark.parametrize("name", CASES)
def test_the_closed_form_is_near_the_truth(name: str) -> None:
    make, reader = CASES[name]
    torch.manual_seed(0)
    truth = Truth(*make())
    sites = truth.sites(reader)
    assert sites
    factor = FACTORS.get(name, 1.6)
    assert 1 / factor < truth.ratio(sites) < factor


def test_logits_stay_where_an_exponential_is_nearly_straight() -> None:
    """Queries and keys that have grown get tighter bounds, however little the gradient cares."""
    torch.manual_seed(0)
    model = Attention(is_fused=True, is_causal=True)
    with torch.no_grad():
        model.qkv.weight.mul_(8)
    room = er.Activations(model, tolerance=1.0, meter=0)
    x = torch.empty(0)
    for _ in range(8):
        x = torch.randn(4, 24, 64)
        with room:
            loss = model(x).square().mean()
        loss.backward()
    bounds = [
        site.bound
        for site in room._sites
        if site.key[1] == "scaled_dot_product_attention" and site.key[3] in (0, 1)
    ]
    q, k, _ = model.qkv(x).view(4, 24, 3, 4, 16).permute(2, 0, 3, 1, 4)
    assert len(bounds) == 2
    for part, partner, bound in ((q, k, bounds[0]), (k, q, bounds[1])):
        assert bound is not None
        errors = bound * (2 * torch.rand_like(part) - 1)
        worst = float((errors @ partner.mT / 4).detach().std(dim=-2).max())
        assert 0.01 < worst < 0.4
