"""Small networks of many families, each with a forward; what that returns is the user's."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Case = tuple[nn.Module, Callable[[], Any]]
CASES: dict[str, Callable[[], Case]] = {}


def case(function: Callable[[], Case]) -> Callable[[], Case]:
    """A network, and a forward of it; what the forward returns is what the user keeps."""
    CASES[function.__name__] = function
    return function


def loss_of(*tensors: Tensor) -> Tensor:
    return sum((t.square().mean() for t in tensors), torch.zeros(()))


@case
def convolutions() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )
    x, y = torch.randn(8, 3, 24, 24), torch.randint(0, 5, (8,))
    return model, lambda: functional.cross_entropy(model(x), y)


@case
def channels_last() -> Case:
    model: Any = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3)
    )
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(8, 3, 24, 24).to(memory_format=torch.channels_last)
    return model, lambda: loss_of(model(x))


@case
def transformer() -> Case:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(4, 32, 64)
    return model, lambda: loss_of(model(x))


class Grouped(nn.Module):
    """Few keys for many queries, by expand."""

    def __init__(self, copies: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.copies = nn.Linear(64, 64 + 2 * 16), nn.Linear(64, 64), copies

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.qkv(x).split((64, 16, 16), -1)
        q = q.view(n, t, 4, 16).transpose(1, 2)
        k, v = (y.view(n, t, 1, 16).transpose(1, 2).expand(n, 4, t, 16) for y in (k, v))
        if self.copies:
            k, v = k.contiguous(), v.contiguous()
        mask = torch.ones(t, t, dtype=torch.bool).tril().expand(n, 4, t, t)
        scores = (q @ k.transpose(-1, -2)).masked_fill(~mask, -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, 64))


@case
def grouped_queries() -> Case:
    model, x = Grouped(False), torch.randn(4, 64, 64)
    return model, lambda: loss_of(model(x))


@case
def grouped_queries_copied() -> Case:
    model, x = Grouped(True), torch.randn(4, 64, 64)
    return model, lambda: loss_of(model(x))


@case
def fused_attention() -> Case:
    model, x = nn.Linear(64, 192), torch.randn(4, 64, 64)

    def forward() -> Tensor:
        q, k, v = (t.view(4, 64, 4, 16).transpose(1, 2) for t in model(x).chunk(3, -1))
        return loss_of(functional.scaled_dot_product_attention(q, k, v, is_causal=True))

    return model, forward


@case
def messages_on_a_graph() -> Case:
    """Gathered rows, and an index that is expanded to the width of the features."""
    model, x = nn.Linear(32, 64), torch.randn(500, 32)
    source, target = torch.randint(0, 500, (2, 3000))

    def forward() -> Tensor:
        h = model(x)
        index = target.clone().unsqueeze(1).expand(-1, 64)
        gathered = h.index_select(0, source) * torch.rand(3000, 1)
        return loss_of(torch.zeros(500, 64).scatter_add(0, index, gathered))

    return model, forward


@case
def embeddings() -> Case:
    model = nn.Sequential(nn.Embedding(50, 32), nn.LayerNorm(32), nn.Linear(32, 50))
    tokens = torch.randint(0, 50, (64, 128))
    return model, lambda: functional.cross_entropy(
        model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
    )


@case
def targets_made_inside() -> Case:
    model = nn.Linear(32, 8)
    x, y = torch.randn(4096, 32), torch.randint(0, 8, (4096,))
    return model, lambda: functional.cross_entropy(model(x), (y + 1) % 8)


@case
def many_classes() -> Case:
    model = nn.Linear(16, 2048)
    x, y = torch.randn(256, 16), torch.randint(0, 2048, (256,))
    return model, lambda: functional.cross_entropy(model(x), y, label_smoothing=0.1)


@case
def classes_by_pixel() -> Case:
    model = nn.Conv2d(1, 3, 1)
    x, y = torch.randn(2, 1, 256, 256), torch.randint(0, 3, (2, 256, 256))
    return model, lambda: functional.cross_entropy(model(x), y)


@case
def logits_with_a_name() -> Case:
    model = nn.Linear(16, 1500)
    x, y = torch.randn(256, 16), torch.randint(0, 1500, (256,))

    def forward() -> Any:
        logits = model(x)
        return logits, functional.cross_entropy(logits, y)

    return model, forward


@case
def targets_of_a_regression() -> Case:
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
    x, y = torch.randn(512, 32), torch.randn(512, 32)
    return model, lambda: functional.mse_loss(model(x), y)


@case
def indices() -> Case:
    model = nn.Linear(32, 64)
    x = torch.randn(512, 32)
    where = torch.randint(0, 512, (700,))

    def forward() -> Tensor:
        h = model(x)
        top = h.topk(8, dim=1)[0]
        return loss_of(h[where].exp(), top, torch.where(h > 0, h.sin(), h))

    return model, forward


@case
def poolings() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.MaxPool2d(2),
        nn.AvgPool2d(2),
        nn.LeakyReLU(),
        nn.AdaptiveMaxPool2d(3),
    )
    x = torch.randn(8, 3, 40, 40)
    return model, lambda: loss_of(model(x))


@case
def dropouts() -> Case:
    model = nn.Sequential(
        nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.2), nn.Linear(128, 64), nn.Dropout(0.5)
    )
    x = torch.randn(256, 64)
    return model, lambda: loss_of(model(x))


@case
def recurrent() -> Case:
    model, x = nn.LSTM(32, 64, 2, batch_first=True), torch.randn(16, 24, 32)
    return model, lambda: loss_of(model(x)[0])


@case
def cells() -> Case:
    model, x = nn.GRUCell(32, 64), torch.randn(20, 64, 32)

    def forward() -> Tensor:
        h = torch.zeros(64, 64)
        for row in x:
            h = model(row, h)
        return loss_of(h)

    return model, forward


@case
def in_place() -> Case:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(inplace=True), nn.Linear(128, 128))
    x = torch.randn(128, 64)

    def forward() -> Tensor:
        h = model(x)
        h[:, :64].mul_(2).sigmoid_()
        return loss_of(h.add_(1).tanh())

    return model, forward


@case
def views() -> Case:
    """A column of a large tensor keeps all of it; chunks keep one storage between them."""
    model, x = nn.Linear(64, 256), torch.randn(128, 64)

    def forward() -> Tensor:
        a, b = model(x).chunk(2, 1)
        column = model(x + 1)[:, :40]
        return loss_of(a * b.sigmoid(), column.exp() * column)

    return model, forward


@case
def broadcast() -> Case:
    model, x = nn.Linear(32, 64), torch.randn(16, 32)

    def forward() -> Tensor:
        h = model(x)
        return loss_of(
            h.unsqueeze(1).expand(16, 40, 64) * torch.rand(40, 64),
            h.new_ones(1, 64).expand(300, 64) * h[0],
        )

    return model, forward


@case
def used_twice() -> Case:
    model, x = nn.Linear(64, 64), torch.randn(256, 64)

    def forward() -> Tensor:
        h = model(x)
        return loss_of(h * h, h.exp() * h, model(h))

    return model, forward


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(checkpoint(self.first, x, use_reentrant=False)).exp()


@case
def checkpointed() -> Case:
    model, x = Recomputed(), torch.randn(256, 64)
    return model, lambda: loss_of(model(x))


@case
def inputs_with_gradients() -> Case:
    model, x = (
        nn.Sequential(nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 1)),
        torch.randn(256, 64),
    )
    x.requires_grad_()
    return model, lambda: loss_of(model(x))


@case
def inputs_made_for_the_call() -> Case:
    """Nobody but autograd holds what was passed in."""
    model, x = nn.Linear(64, 64), torch.randint(0, 9, (256, 64))
    return model, lambda: loss_of(model(x.float()))


@case
def outputs_that_are_kept() -> Case:
    model, x = (
        nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 64), nn.Tanh()),
        torch.randn(256, 64),
    )

    def forward() -> Any:
        middle = model[:2](x)
        out = model[2:](middle.exp())
        return middle[:4], out, out.mean()

    return model, forward


@case
def autocast() -> Case:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64))
    x = torch.randn(256, 64)

    def forward() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model(x))

    return model, forward


@case
def frozen_parts() -> Case:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    model[0].requires_grad_(False)
    x = torch.randn(256, 64)
    return model, lambda: loss_of(model(x))


@case
def noise_of_a_diffusion() -> Case:
    model, clean = (
        nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64)),
        torch.randn(128, 64),
    )
    level = torch.rand(128, 1)

    def forward() -> Tensor:
        noise = torch.randn_like(clean)
        return functional.mse_loss(model(clean * (1 - level) + noise * level), noise)

    return model, forward
