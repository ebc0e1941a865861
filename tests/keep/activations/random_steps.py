"""Kinds of steps that random networks are made of: layers, functions, views, masks, in place."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

Run = Callable[[Tensor], Tensor]


@dataclass(eq=False)
class Maker:
    """What a step is made with: the shape that arrives, numbers to choose by, earlier tensors."""

    shape: tuple[int, ...]
    number: int
    modules: nn.ModuleList
    seen: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    """By shape: after which steps a tensor looked like that."""

    earlier: list[Tensor] = field(default_factory=list)
    """Of the forward that is running."""

    def pick(self, *options: Any) -> Any:
        """One of a few."""
        self.number, rest = divmod(self.number, len(options))
        return options[rest]

    def layer(self, module: nn.Module) -> Any:
        """A part with parameters or a mode."""
        self.modules.append(module)
        return module

    @property
    def width(self) -> int:
        """Features or channels."""
        return self.shape[self.axis]

    @property
    def axis(self) -> int:
        """Where they are."""
        return -1 if len(self.shape) < 4 else 1

    def beside(self) -> Callable[[Tensor], Tensor]:
        """An earlier tensor of the same shape."""
        places = self.seen[self.shape]
        place = places[self.pick(0, 1, 2) % len(places)]
        return lambda x: self.earlier[place]


Build = Callable[[Maker], Run]
STEPS: dict[str, tuple[tuple[int, ...], Build]] = {}
"""By name: for tensors of so many axes."""

ROWS, IMAGE, ALL = (2, 3), (4,), (2, 3, 4)


def step(*axes: int) -> Callable[[Build], Build]:
    def added(build: Build) -> Build:
        STEPS[build.__name__.strip("_")] = axes, build
        return build

    return added


def simple(axes: Iterable[int], **functions: Run) -> None:
    """Steps without parts or numbers."""
    for name, function in functions.items():
        STEPS[name] = tuple(axes), lambda make, function=function: function


def modules(axes: Iterable[int], **kinds: Callable[[Maker], nn.Module]) -> None:
    """Steps that are one module."""
    for name, kind in kinds.items():
        STEPS[name] = tuple(axes), lambda make, kind=kind: make.layer(kind(make))


modules(
    ROWS,
    linear=lambda m: nn.Linear(m.width, m.pick(16, 32, m.width)),
    linear_without_bias=lambda m: nn.Linear(m.width, m.width, bias=False),
    weight_norm=lambda m: parametrizations.weight_norm(nn.Linear(m.width, m.width)),
    spectral_norm=lambda m: parametrizations.spectral_norm(nn.Linear(m.width, m.width)),
    layer_norm=lambda m: nn.LayerNorm(m.width, elementwise_affine=m.pick(True, False)),
    rms_norm=lambda m: nn.RMSNorm(m.width),
    glu=lambda m: nn.Sequential(nn.Linear(m.width, 2 * m.width), nn.GLU()),
)
modules(
    (2,),
    batch_norm=lambda m: nn.BatchNorm1d(m.width, affine=m.pick(True, False)),
)
modules(
    IMAGE,
    conv=lambda m: nn.Conv2d(
        m.width, m.pick(8, 16), m.pick(3, 1), m.pick(1, 2), 1, bias=m.pick(True, False)
    ),
    conv_by_channel=lambda m: nn.Conv2d(m.width, m.width, 3, 1, 1, groups=m.width),
    conv_dilated=lambda m: nn.Conv2d(
        m.width, 8, 3, 1, 2, 2, padding_mode=m.pick("zeros", "reflect")
    ),
    conv_transpose=lambda m: nn.ConvTranspose2d(m.width, 8, 3, m.pick(1, 2), 1),
    batch_norm_2d=lambda m: nn.BatchNorm2d(m.width, track_running_stats=m.pick(True, False)),
    group_norm=lambda m: nn.GroupNorm(m.pick(4, 1), m.width),
    instance_norm=lambda m: nn.InstanceNorm2d(m.width, affine=m.pick(True, False)),
    max_pool=lambda m: nn.MaxPool2d(m.pick(2, 3), m.pick(1, 2), ceil_mode=m.pick(False, True)),
    average_pool=lambda m: nn.AvgPool2d(2, m.pick(1, 2)),
    adaptive_pool=lambda m: nn.AdaptiveAvgPool2d(m.pick(6, 4)),
    adaptive_max_pool=lambda m: nn.AdaptiveMaxPool2d(6),
    dropout_2d=lambda m: nn.Dropout2d(0.3),
    upsample=lambda m: nn.Upsample(size=(10, 10), mode=m.pick("nearest", "bilinear")),
    local_response_norm=lambda m: nn.LocalResponseNorm(3),
    pixel_shuffle=lambda m: nn.Sequential(nn.Conv2d(m.width, 32, 1), nn.PixelShuffle(2)),
)
modules(
    ALL,
    relu=lambda m: nn.ReLU(),
    relu_in_place=lambda m: nn.ReLU(inplace=True),
    gelu=lambda m: nn.GELU(approximate=m.pick("none", "tanh")),
    silu=lambda m: nn.SiLU(inplace=m.pick(False, True)),
    mish=lambda m: nn.Mish(inplace=m.pick(False, True)),
    elu=lambda m: nn.ELU(m.pick(1.0, 0.5), inplace=m.pick(False, True)),
    celu=lambda m: nn.CELU(0.7),
    selu=lambda m: nn.SELU(inplace=m.pick(False, True)),
    leaky_relu=lambda m: nn.LeakyReLU(0.1, inplace=m.pick(False, True)),
    rrelu=lambda m: nn.RReLU(),
    prelu=lambda m: nn.PReLU(),
    hardtanh=lambda m: nn.Hardtanh(inplace=m.pick(False, True)),
    relu6=lambda m: nn.ReLU6(inplace=m.pick(False, True)),
    hardswish=lambda m: nn.Hardswish(inplace=m.pick(False, True)),
    hardsigmoid=lambda m: nn.Hardsigmoid(),
    softplus=lambda m: nn.Softplus(),
    softsign=lambda m: nn.Softsign(),
    tanhshrink=lambda m: nn.Tanhshrink(),
    softshrink=lambda m: nn.Softshrink(0.1),
    threshold=lambda m: nn.Threshold(0.1, -0.2),
    log_sigmoid=lambda m: nn.LogSigmoid(),
    dropout=lambda m: nn.Dropout(m.pick(0.1, 0.5), inplace=m.pick(False, True)),
    alpha_dropout=lambda m: nn.AlphaDropout(0.2),
    softmax=lambda m: nn.Softmax(m.axis),
    log_softmax=lambda m: nn.LogSoftmax(m.axis),
    softmin=lambda m: nn.Softmin(m.axis),
)
simple(
    ALL,
    sigmoid=torch.sigmoid,
    tanh=torch.tanh,
    tanh_in_place=lambda x: (x * 0.5).tanh_(),
    sine=torch.sin,
    exponential=lambda x: (x * 0.3).exp(),
    logarithm=lambda x: (x.abs() + 0.5).log(),
    log1p=lambda x: x.square().log1p(),
    root=lambda x: (x.square() + 0.1).sqrt(),
    inverse_root=lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-3).rsqrt(),
    square=lambda x: x**2,
    cube=lambda x: x.pow(3) * 0.3,
    power=lambda x: (x.abs() + 0.1) ** 0.7,
    quotient=lambda x: x / (1 + x.abs()),
    clamp=lambda x: x.clamp(-0.5, 0.8),
    clamp_min=lambda x: x.clamp_min(-0.3),
    absolute=torch.abs,
    erf=torch.erf,
    logit=lambda x: x.sigmoid().logit(1e-3),
    softcap=lambda x: 5 * torch.tanh(x / 5),
    normalize=lambda x: functional.normalize(x, dim=1),
    centred=lambda x: x - x.mean(-1, keepdim=True),
    standardised=lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 0.1),
    variance=lambda x: x / (x.var(-1, keepdim=True, correction=0) + 0.5).sqrt(),
    cumulated=lambda x: x.cumsum(-1) * 0.2,
    logcumsumexp=lambda x: x.logcumsumexp(-1) * 0.3,
    largest=lambda x: x - x.amax(-1, keepdim=True),
    logsumexp=lambda x: x - x.logsumexp(-1, keepdim=True),
    sorted_values=lambda x: x.sort(-1).values,
    top=lambda x: torch.cat([x.topk(4, -1).values, x[..., 4:]], -1),
    maximum=lambda x: torch.maximum(x, x.roll(1, 0)),
    minimum_of_halves=lambda x: torch.cat([torch.minimum(*x.chunk(2, 0)), x[x.shape[0] // 2 :]]),
    rolled=lambda x: x.roll((1, 2), (0, -1)),
    flipped=lambda x: x.flip(-1),
    picked=lambda x: x.index_select(-1, torch.arange(x.shape[-1]).flip(0)),
    by_index=lambda x: x[torch.arange(x.shape[0]).flip(0)],
    gathered=lambda x: x.gather(-1, (torch.arange(x.shape[-1]) // 2).expand(x.shape)),
    scattered=lambda x: torch.zeros_like(x).scatter_add(
        -1, (torch.arange(x.shape[-1]) // 2).expand(x.shape), x
    ),
    added_at_index=lambda x: x.index_add(0, torch.tensor([0, 1]), x[:2] * 0.5),
    padded=lambda x: functional.pad(x, (1, 1))[..., 1:-1],
    exchanged=lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    turned=lambda x: x.transpose(0, 1).mul(0.9).transpose(0, 1),
    flattened=lambda x: functional.gelu(x.flatten(0, 1)).view(x.shape),
    stacked=lambda x: torch.stack([x, x.tanh()]).mean(0),
    chunked=lambda x: torch.cat([part * (i + 0.5) for i, part in enumerate(x.chunk(3, -1))], -1),
    halves_gated=lambda x: torch.cat([functional.silu(x[..., ::2]) * x[..., 1::2]] * 2, -1),
    expanded=lambda x: (x[:1] * 0.5).expand_as(x) + x,
    masked_fill=lambda x: x.masked_fill(torch.rand_like(x) < 0.2, -1.0),
    where=lambda x: torch.where(x > 0, x, x.detach() * 0.1 + x * 0.2),
    filled_in_place=lambda x: (x * 1.0).masked_fill_(torch.rand_like(x) < 0.2, 0.0),
    einsum=lambda x: torch.einsum("b...,c...->bc", x, x).softmax(-1).mm(x.flatten(1)).view(x.shape),
    self_product=lambda x: x * x,
    times_detached=lambda x: x * x.detach().sigmoid(),
    without_gradient=lambda x: x + _without_gradient(x),
    straight_through=lambda x: x + (x.round() - x).detach(),
    written_part=lambda x: _written(x, lambda y: y[:, 1:3].mul_(0.5)),
    written_slice=lambda x: _written(x, lambda y: y[:, 1:3].copy_(x[:, 2:4].tanh())),
    written_activation=lambda x: _written(x, lambda y: functional.relu_(y[:, :2])),
    assigned=lambda x: _written(x, lambda y: y.__setitem__((slice(None), 0), x[:, 1].sigmoid())),
    added_in_place=lambda x: functional.gelu(x).add_(x),
    multiplied_in_place=lambda x: x.tanh().mul_(x),
    divided_in_place=lambda x: (x * 2).div_(3.0),
    scaled=lambda x: x * 0.7,
    key_mask=lambda x: functional.gelu(x) * (torch.arange(x.shape[-2])[:, None] < 5),
    drop_path=lambda x: functional.silu(x) * _per_sample(x).bernoulli_(0.7).div_(0.7),
    masked=lambda x: torch.tanh(x) * (torch.rand_like(x) < 0.7),
    mask_of_more=lambda x: (functional.gelu(x[:1]) * (torch.rand(x.shape) < 0.7)) + x,
    scale_by_vector=lambda x: functional.gelu(x) * torch.linspace(0.5, 1.0, x.shape[-1]),
    scale_from_the_left=lambda x: torch.linspace(0.5, 1.0, x.shape[-1]) * functional.silu(x),
    spectrum=lambda x: torch.fft.irfft(torch.fft.rfft(x) * 0.5, n=x.shape[-1]),
    spectrum_gated=lambda x: torch.fft.ifft(_gated(torch.fft.fft(x))).real,
    in_double=lambda x: functional.gelu(x.double()).square().float(),
    in_half=lambda x: functional.silu(x.bfloat16()).mul(0.5).float(),
    sign_of=lambda x: x * x.sign().mul(0.5).add(1),
    angle=lambda x: torch.atan2(x, 1 + x.roll(1, -1).square()),
    lerp=lambda x: torch.lerp(x, x.tanh(), x.sigmoid()),
    addcmul=lambda x: torch.addcmul(x, x.tanh(), x.sigmoid(), value=0.5),
    addcdiv=lambda x: torch.addcdiv(x, x.tanh(), 1 + x.square()),
    product=lambda x: x * (1 + x[..., :3].prod(-1, keepdim=True)),
    distance=lambda x: x * torch.cdist(x.flatten(1), x.flatten(1)).mean().tanh(),
    norm=lambda x: x / (1 + torch.linalg.vector_norm(x, dim=-1, keepdim=True)),
    similarity=lambda x: x * functional.cosine_similarity(x, x.roll(1, 0), dim=-1).unsqueeze(-1),
)
simple(
    IMAGE,
    channels_last=lambda x: x.to(memory_format=torch.channels_last),
    channels_first=lambda x: x.contiguous(),
    rows_of_image=lambda x: x.flatten(2).transpose(1, 2),
    grid_sampled=lambda x: functional.grid_sample(x, _grid(x), align_corners=False),
    unfolded=lambda x: functional.fold(
        functional.unfold(x, 3, padding=1), x.shape[2:], 3, padding=1
    ),
    reflected=lambda x: functional.pad(x, (1, 1, 1, 1), mode="reflect")[:, :, 1:-1, 1:-1],
    lp_pool=lambda x: functional.lp_pool2d(x.abs() + 0.1, 2, 2, 1),
    squeezed=lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    interpolated=lambda x: functional.interpolate(x, scale_factor=0.5, mode="bicubic"),
)


def _without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.mul(0.3).add_(1.0).relu_()


def _written(x: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
    y = x * 1.0
    write(y)
    return y


def _per_sample(x: Tensor) -> Tensor:
    return torch.ones(x.shape[0], *[1] * (x.dim() - 1))


def _gated(x: Tensor) -> Tensor:
    return x * x.abs().sigmoid()


def _grid(x: Tensor) -> Tensor:
    offset = x[:, :2].permute(0, 2, 3, 1).tanh() * 0.1
    axes = torch.meshgrid(*(torch.linspace(-1, 1, n) for n in x.shape[2:]), indexing="ij")
    return torch.stack(axes[::-1], -1) + offset
