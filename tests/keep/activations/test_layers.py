"""Layers of every kind: the same bits at tolerance 0, near otherwise, nothing left behind."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.keep.activations.checking import agrees
from tests.keep.activations.framing import Case, function, of


def labelled(**options: Any) -> Case:
    """A classifier of pixels."""

    def forward(model: Any) -> tuple[Tensor, ...]:
        target = torch.randint(0, 6, (8, 24, 24))
        return (functional.cross_entropy(model(torch.randn(8, 3, 24, 24)), target, **options),)

    return lambda: nn.Conv2d(3, 6, 3, padding=1), forward


CONVOLUTIONS = {
    "grouped": of(lambda: nn.Conv2d(8, 16, 3, groups=4, padding=1), 8, 8, 16, 16),
    "depthwise": of(lambda: nn.Conv2d(8, 8, 5, groups=8), 8, 8, 16, 16),
    "dilated and strided": of(lambda: nn.Conv2d(8, 8, 3, 2, dilation=2), 8, 8, 16, 16),
    "reflected": of(lambda: nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), 8, 8, 16, 16),
    "one dimension": of(lambda: nn.Conv1d(8, 8, 5), 8, 8, 128),
    "three dimensions": of(lambda: nn.Conv3d(4, 8, 3), 4, 4, 8, 12, 12),
    "transposed": of(lambda: nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1), 8, 8, 16, 16),
    "transposed, grouped, dilated": of(
        lambda: nn.ConvTranspose2d(8, 8, 3, groups=2, dilation=2), 8, 8, 16, 16
    ),
    "unbatched": of(lambda: nn.Conv2d(8, 8, 3), 8, 32, 32),
    "unfolded": of(lambda: nn.Sequential(nn.Unfold(3), nn.Fold((14, 14), 3)), 8, 8, 14, 14),
}

NORMS = {
    "group": of(lambda: nn.GroupNorm(4, 8), 8, 8, 16, 16),
    "instance": of(lambda: nn.InstanceNorm2d(8, affine=True), 8, 8, 16, 16),
    "instance, tracked": of(
        lambda: nn.InstanceNorm1d(8, affine=True, track_running_stats=True), 8, 8, 256
    ),
    "batch, in evaluation": of(lambda: nn.BatchNorm2d(8).eval(), 8, 8, 16, 16),
    "batch, three dimensions": of(lambda: nn.BatchNorm3d(4), 4, 4, 8, 8, 8),
    "batch, no weights": of(lambda: nn.BatchNorm2d(8, affine=False), 8, 8, 16, 16),
    "layer, over planes": of(lambda: nn.LayerNorm([16, 16]), 8, 8, 16, 16),
    "layer, no weights": of(lambda: nn.LayerNorm(64, elementwise_affine=False), 512, 64),
    "root mean square": of(lambda: nn.RMSNorm(64), 512, 64),
    "local response": of(lambda: nn.LocalResponseNorm(3), 8, 8, 16, 16),
    "many channels": of(lambda: nn.BatchNorm1d(5000), 4, 5000),
}

POOLS = {
    "1d, padded": of(lambda: nn.MaxPool1d(3, 2, 1), 8, 8, 256),
    "2d, ceiling": of(lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), 8, 8, 17, 19),
    "2d, dilated": of(lambda: nn.MaxPool2d(3, 2, dilation=2), 8, 8, 24, 24),
    "2d, large window": of(lambda: nn.MaxPool2d(17, 3), 8, 8, 32, 32),
    "2d, unbatched": of(lambda: nn.MaxPool2d(2), 8, 48, 48),
    "3d, ceiling": of(lambda: nn.MaxPool3d(3, 2, 1, ceil_mode=True), 4, 4, 9, 10, 11),
    "adaptive maximum": of(lambda: nn.AdaptiveMaxPool2d(5), 8, 8, 17, 19),
    "adaptive maximum, 1d": of(lambda: nn.AdaptiveMaxPool1d(50), 8, 8, 170),
    "adaptive maximum, 3d": of(lambda: nn.AdaptiveMaxPool3d(4), 4, 4, 9, 10, 11),
    "fractional": of(lambda: nn.FractionalMaxPool2d(2, output_ratio=0.6), 8, 8, 24, 24),
    "average": of(lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), 8, 8, 17, 19),
    "average, 3d": of(lambda: nn.AvgPool3d(2, ceil_mode=True), 4, 4, 9, 10, 11),
    "adaptive average": of(lambda: nn.AdaptiveAvgPool2d((3, None)), 8, 8, 17, 19),
    "power": of(lambda: nn.LPPool2d(2, 2), 8, 8, 24, 24),
}


class Unpooling(nn.Module):
    """Indices that serve another layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.pool = nn.MaxPool2d(2, return_indices=True)

    def forward(self, x: Tensor) -> Tensor:
        y, places = self.pool(self.conv(x))
        return functional.max_unpool2d(y.tanh(), places, [2, 2])


def sampled(y: Tensor) -> Tensor:
    grid: Any = functional.affine_grid(torch.eye(2, 3).expand(8, 2, 3), [8, 8, 9, 9], False)
    return functional.grid_sample(y.view(8, 8, 16, 16), grid, align_corners=False)


SHAPES = {
    "bilinear": of(lambda: nn.Upsample(scale_factor=2, mode="bilinear"), 8, 8, 16, 16),
    "bicubic, smaller": of(lambda: nn.Upsample(size=(9, 11), mode="bicubic"), 8, 8, 16, 16),
    "nearest": of(lambda: nn.Upsample(scale_factor=3), 8, 8, 16, 16),
    "shuffled pixels": of(lambda: nn.PixelShuffle(2), 8, 8, 16, 16),
    "unshuffled pixels": of(lambda: nn.PixelUnshuffle(2), 8, 8, 16, 16),
    "unpooled": of(Unpooling, 8, 8, 16, 16),
    "sampled on a grid": function(
        lambda y: functional.grid_sample(
            y.view(8, 8, 16, 16),
            functional.affine_grid(torch.eye(2, 3).expand(8, 2, 3), [8, 8, 9, 9], False),
            align_corners=False,
        ),
        128,
        128,
    ),
    "padded": function(lambda y: functional.pad(y, (3, 3), "replicate"), 8, 64, 64),
    "gathered": function(lambda y: y.gather(1, y.argsort(1)), 128, 128),
    "chosen by a mask": function(lambda y: y[y > 0], 128, 128),
    "sorted": function(lambda y: y.sort(-1)[0].cumsum(-1), 128, 128),
    "expanded": function(lambda y: y[:, None].expand(-1, 9, -1).exp(), 64, 64),
    "overlapping windows": function(lambda y: y.unfold(1, 9, 2).sigmoid(), 128, 128),
    "overlapping strides": function(
        lambda y: y.as_strided((100, 64, 8), (128, 2, 1)).sigmoid(), 128, 128
    ),
    "rolled and flipped": function(lambda y: y.roll(3, 1).flip(0).tanh(), 128, 128),
    "einsum": function(lambda y: torch.einsum("nab,ncb->nac", y, y), 8, 32, 32),
    "split, stacked": function(lambda y: torch.stack(y.split(32, 1)).prod(0), 128, 128),
}


LOSSES = {
    "plain": labelled(),
    "smooth": labelled(label_smoothing=0.1),
    "weighted": labelled(weight=torch.arange(1.0, 7.0)),
    "some ignored": labelled(ignore_index=2),
    "binary": function(
        lambda y: functional.binary_cross_entropy_with_logits(y, (y.detach() > 0.1).float()),
        128,
        128,
    ),
    "huber": function(lambda y: functional.huber_loss(y, torch.zeros_like(y)), 128, 128),
    "divergence": function(
        lambda y: functional.kl_div(
            y.log_softmax(-1), y.detach().roll(1).softmax(-1), reduction="batchmean"
        ),
        128,
        128,
    ),
    "triplet": function(
        lambda y: functional.triplet_margin_loss(y[:40], y[40:80], y[80:120]), 128, 128
    ),
}


class Tied(nn.Module):
    """One matrix at both ends, and a frozen layer between."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(80, 64, padding_idx=0)
        self.middle = nn.Linear(64, 64).requires_grad_(False)
        self.head = nn.Linear(64, 80, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, places: Tensor) -> Tensor:
        return self.head(functional.gelu(self.middle(self.embed(places))))


def token_loss(model: Any) -> tuple[Tensor, ...]:
    places = torch.randint(0, 80, (16, 32))
    return (functional.cross_entropy(model(places).flatten(0, -2), places.flatten()),)


def bag(**options: Any) -> Case:
    def forward(model: Any) -> tuple[Tensor, ...]:
        places = torch.randint(0, 500, (6000,))
        starts = torch.arange(0, 6000, 20)
        return (model(places, starts).tanh().square().sum(),)

    return lambda: nn.EmbeddingBag(500, 64, **options), forward


EMBEDDINGS: dict[str, Case] = {
    "tied, frozen": (Tied, token_loss),
    "bag of means": bag(),
    "bag of maxima": bag(mode="max"),
    "bag, sparse": bag(mode="sum", sparse=True),
    "sparse": (lambda: nn.Sequential(nn.Embedding(80, 80, sparse=True), nn.Tanh()), token_loss),
    "limited": (lambda: nn.Embedding(80, 80, max_norm=1.0), token_loss),
}


class Packed(nn.Module):
    """Sequences of several lengths."""

    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.cell: Any = kind(24, 32, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.arange(len(x), 0, -1) + x.shape[1] - len(x)
        out = self.cell(pack_padded_sequence(x, lengths, batch_first=True))[0]
        return pad_packed_sequence(out, batch_first=True)[0]


class Last(nn.Module):
    """States of the last layer."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        out, state = self.cell(x)
        return out.mean() + (state[0] if isinstance(state, tuple) else state)


RECURRENT = {
    "lstm, both ways": of(lambda: Last(nn.LSTM(24, 32, 2, bidirectional=True)), 20, 16, 24),
    "lstm, dropout": of(lambda: Last(nn.LSTM(24, 32, 2, dropout=0.3)), 20, 16, 24),
    "lstm, packed": of(lambda: Packed(nn.LSTM), 16, 24, 24),
    "gru, both ways": of(lambda: Last(nn.GRU(24, 32, bidirectional=True)), 20, 16, 24),
    "gru, packed, both ways": of(lambda: Packed(nn.GRU, bidirectional=True), 16, 24, 24),
    "rnn": of(lambda: Last(nn.RNN(24, 32)), 20, 16, 24),
}


def attention(**options: Any) -> Case:
    def call(y: Tensor) -> Tensor:
        q, k, v = y.view(4, 48, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
        if "bias" in options:
            mask = torch.randn(48, 48, requires_grad=options["bias"])
            return functional.scaled_dot_product_attention(q, k, v, mask)
        return functional.scaled_dot_product_attention(q, k, v, **options)

    return function(call, 4, 48, 192)


class Attending(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        hidden = torch.zeros(x.shape[:2], dtype=torch.bool)
        hidden[:, -3:] = True
        out, weights = self.attention(x, x, x, attn_mask=mask, key_padding_mask=hidden)
        return torch.cat([out, weights], -1)


ATTENTION = {
    "causal": attention(is_causal=True),
    "grouped": function(
        lambda y: functional.scaled_dot_product_attention(
            y.view(4, 48, 12, 16).transpose(1, 2),
            y[..., :64].view(4, 48, 4, 16).transpose(1, 2),
            y[..., 64:128].view(4, 48, 4, 16).transpose(1, 2),
            enable_gqa=True,
        ),
        4,
        48,
        192,
    ),
    "mask": attention(attn_mask=torch.ones(48, 48, dtype=torch.bool).tril()),
    "bias": attention(bias=False),
    "learnt bias": attention(bias=True),
    "dropout": attention(dropout_p=0.2),
    "multi-head": of(Attending, 8, 40, 64),
    "multi-head, dropout": of(lambda: Attending(dropout=0.1, add_bias_kv=True), 8, 40, 64),
    "encoder": of(
        lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu"),
        8,
        40,
        64,
    ),
}


def cached(model: Any) -> tuple[Tensor, ...]:
    with parametrize.cached():
        x = torch.randn(128, 128)
        return (model(model(x).tanh()).square().sum(),)


WEIGHTS = {
    "weight norm": of(lambda: parametrizations.weight_norm(nn.Conv2d(8, 32, 5)), 8, 8, 16, 16),
    "spectral norm": of(lambda: parametrizations.spectral_norm(nn.Linear(128, 128)), 128, 128),
    "orthogonal": of(lambda: parametrizations.orthogonal(nn.Linear(96, 96)), 128, 96),
    "cached": (
        lambda: parametrizations.weight_norm(nn.Linear(128, 128)),
        cached,
    ),
    "double precision": (
        lambda: nn.Sequential(nn.Linear(64, 64), nn.GELU()).double(),
        lambda model: (model(torch.randn(256, 64, dtype=torch.float64)).square().sum(),),
    ),
}


GROUPS = {
    "convolution": CONVOLUTIONS,
    "norm": NORMS,
    "pool": POOLS,
    "shape": SHAPES,
    "loss": LOSSES,
    "embedding": EMBEDDINGS,
    "recurrent": RECURRENT,
    "attention": ATTENTION,
    "weights": WEIGHTS,
}


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group, cases in GROUPS.items() for name in cases]
)
def test_layer(group: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    make, forward = GROUPS[group][name]
    agrees(make, forward)
    assert not [r for r in caplog.records if "not understood" in r.message]
