"""Steps of random networks that are more than one function: blocks, attention, recurrence."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.keep.activations.random_steps import ALL, IMAGE, ROWS, Maker, Run, step


@step(*ALL)
def residual(make: Maker) -> Run:
    other = make.beside()
    return lambda x: x + other(x)


@step(*ALL)
def gated(make: Maker) -> Run:
    """A tensor that was read before is read once more."""
    other = make.beside()
    return lambda x: x * other(x).sigmoid()


@step(*ALL)
def layer_scale(make: Maker) -> Run:
    scale = nn.Parameter(torch.full((make.width, *[1] * (2 if len(make.shape) == 4 else 0)), 0.5))
    holder = make.layer(nn.ParameterList([scale]))
    function = make.pick(functional.gelu, torch.tanh, functional.relu)
    return lambda x: function(x) * holder[0]


@step(*ROWS)
def again(make: Maker) -> Run:
    """The weights of an earlier layer."""
    found = [m for m in make.modules if isinstance(m, nn.Linear) and _is_square(m, make.width)]
    layer = found[0] if found else make.layer(nn.Linear(make.width, make.width))
    return lambda x: layer(x).add(x)


def _is_square(layer: nn.Linear, width: int) -> bool:
    return layer.in_features == layer.out_features == width


@step(*ROWS)
def transposed_weights(make: Maker) -> Run:
    layer = make.layer(nn.Linear(make.width, 24, bias=False))
    return lambda x: functional.linear(functional.gelu(layer(x)), layer.weight.t())


@step(*ROWS)
def mlp(make: Maker) -> Run:
    function = make.pick(functional.gelu, functional.silu, functional.relu)
    drop = make.pick(0.0, 0.2)
    up, down = (make.layer(nn.Linear(*w)) for w in ((make.width, 32), (32, make.width)))
    return lambda x: down(functional.dropout(function(up(x)), drop))


@step(*ROWS)
def gated_mlp(make: Maker) -> Run:
    function = make.pick(functional.silu, functional.gelu, torch.sigmoid)
    both, down = make.layer(nn.Linear(make.width, 48)), make.layer(nn.Linear(24, make.width))

    def run(x: Tensor) -> Tensor:
        gate, value = both(x).chunk(2, -1)
        return down(function(gate) * value)

    return run


@step(*ROWS)
def checkpointed(make: Maker) -> Run:
    inner = mlp(make)
    return lambda x: checkpoint(inner, x, use_reentrant=False)


@step(*ROWS)
def in_autocast(make: Maker) -> Run:
    inner, dtype = mlp(make), make.pick(torch.bfloat16, torch.float16)

    def run(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype):
            return inner(x).float()

    return run


@step(*ROWS)
def frozen(make: Maker) -> Run:
    layer = make.layer(nn.Linear(make.width, make.width)).requires_grad_(False)
    return lambda x: functional.gelu(layer(x))


@step(*ROWS)
def embedded(make: Maker) -> Run:
    table = make.layer(nn.Embedding(11, make.width, sparse=False, padding_idx=make.pick(None, 3)))
    return lambda x: x + table(torch.arange(x.shape[-2]) % 11)


@step(*ROWS)
def bilinear(make: Maker) -> Run:
    layer = make.layer(nn.Bilinear(make.width, make.width, 16))
    return lambda x: layer(x, x.tanh())


@step(3)
def attention(make: Maker) -> Run:
    layer = make.layer(
        nn.MultiheadAttention(make.width, 2, dropout=make.pick(0.0, 0.2), batch_first=True)
    )
    weights = make.pick(False, True)
    mask = make.pick(None, torch.arange(make.shape[1]).expand(make.shape[:2]) > 6)
    return lambda x: layer(x, x, x, key_padding_mask=mask, need_weights=weights)[0]


@step(3)
def scaled_dot_product(make: Maker) -> Run:
    heads, width = 4, make.width // 4
    groups = make.pick(4, 2, 1)
    project = make.layer(nn.Linear(make.width, width * (heads + 2 * groups)))
    out = make.layer(nn.Linear(heads * width, make.width))
    causal, masked = make.pick((True, False), (False, True), (False, False))
    drop = make.pick(0.0, 0.1)

    def run(x: Tensor) -> Tensor:
        n, t, _ = x.shape
        split = project(x).view(n, t, heads + 2 * groups, width).transpose(1, 2)
        q, k, v = split.split([heads, groups, groups], 1)
        mask = (torch.arange(t) < max(1, t - 2)).expand(n, 1, t, t) if masked else None
        y = functional.scaled_dot_product_attention(
            q, k, v, mask, drop, is_causal=causal, enable_gqa=groups != heads
        )
        return out(y.transpose(1, 2).reshape(n, t, heads * width))

    return run


@step(3)
def composed_attention(make: Maker) -> Run:
    project = make.layer(nn.Linear(make.width, 3 * make.width))
    drop = make.layer(nn.Dropout(0.1))

    def run(x: Tensor) -> Tensor:
        q, k, v = project(x).chunk(3, -1)
        return torch.bmm(drop((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)), v)

    return run


@step(3)
def rotary(make: Maker) -> Run:
    angles = torch.arange(make.shape[1])[:, None] * torch.linspace(0.1, 1, make.width // 2)
    cosine, sine = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def run(x: Tensor) -> Tensor:
        one, two = x.chunk(2, -1)
        return x * cosine + torch.cat([-two, one], -1) * sine

    return run


@step(3)
def recurrent(make: Maker) -> Run:
    kind = make.pick(nn.LSTM, nn.GRU, nn.RNN)
    both = make.pick(False, True)
    layer = make.layer(
        kind(make.width, make.width // (2 if both else 1), batch_first=True, bidirectional=both)
    )
    return lambda x: layer(x)[0]


@step(3)
def cell(make: Maker) -> Run:
    kind = make.pick(nn.LSTMCell, nn.GRUCell, nn.RNNCell)
    layer = make.layer(kind(make.width, make.width))

    def run(x: Tensor) -> Tensor:
        state, found = None, []
        for part in x.unbind(1):
            state = layer(part, state)
            found.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(found, 1)

    return run


@step(3)
def conv_1d(make: Maker) -> Run:
    layer = make.layer(nn.Conv1d(make.width, make.pick(16, 32), 3, padding=1))
    return lambda x: layer(x.transpose(1, 2)).transpose(1, 2)


@step(3)
def batch_norm_1d(make: Maker) -> Run:
    layer = make.layer(nn.BatchNorm1d(make.width))
    return lambda x: layer(x.transpose(1, 2)).transpose(1, 2)


@step(3)
def max_pool_1d(make: Maker) -> Run:
    return lambda x: functional.max_pool1d(x.transpose(1, 2), 2).transpose(1, 2).contiguous()


@step(3)
def rows_to_image(make: Maker) -> Run:
    return lambda x: x.unflatten(2, (4, -1)).contiguous()


@step(3)
def merged(make: Maker) -> Run:
    return lambda x: x.reshape(-1, x.shape[-1])


@step(2)
def unmerged(make: Maker) -> Run:
    return lambda x: x.view(-1, make.shape[0] // 4, x.shape[-1]).contiguous()


@step(*IMAGE)
def conv_3d(make: Maker) -> Run:
    layer = make.layer(nn.Conv3d(make.width, 8, 3, padding=1))
    pool = make.pick(False, True)

    def run(x: Tensor) -> Tensor:
        y = layer(torch.stack([x, x.tanh()], 2))
        return functional.max_pool3d(y, (2, 1, 1))[:, :, 0] if pool else y.mean(2)

    return run


@step(*IMAGE)
def conv_norm_activation(make: Maker) -> Run:
    kind = make.pick(nn.ReLU, nn.SiLU, nn.GELU, nn.Hardswish)
    conv = make.layer(nn.Conv2d(make.width, 8, 3, padding=1, bias=False))
    norm = make.layer(make.pick(nn.BatchNorm2d(8), nn.GroupNorm(2, 8)))
    function = make.layer(kind() if kind is nn.GELU else kind(inplace=make.pick(True, False)))
    return lambda x: function(norm(conv(x)))


@step(*IMAGE)
def squeeze_and_excite(make: Maker) -> Run:
    down, up = nn.Conv2d(make.width, 4, 1), nn.Conv2d(4, make.width, 1)
    gate = make.layer(nn.Sequential(nn.AdaptiveAvgPool2d(1), down, nn.SiLU(), up, nn.Sigmoid()))
    return lambda x: x * gate(x)


@step(*IMAGE)
def norm_of_channels(make: Maker) -> Run:
    norm = make.layer(nn.LayerNorm(make.width))
    return lambda x: norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@step(*IMAGE)
def unpooled(make: Maker) -> Run:
    def run(x: Tensor) -> Tensor:
        y, index = functional.max_pool2d(x, 2, return_indices=True)
        return functional.max_unpool2d(y, index, [2, 2], output_size=x.shape[2:]) + x

    return run
