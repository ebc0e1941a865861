"""A layer of many classes, its data, and a step of it: for tests of losses."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.keep.activations.checking import nothing_is_left

WIDTH, CLASSES = 24, 1031
IGNORED = 2
PIECE_BYTES = 1 << 20


class Head(nn.Module):
    """A linear layer, and its outputs as losses want them."""

    def __init__(self, layout: str = "rows", classes: int = CLASSES) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, classes)
        self.bias = nn.Parameter(torch.randn(classes))
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        samples, positions, classes = y.shape
        if self.layout == "rows":
            return y.view(-1, classes)
        if self.layout == "positions":
            return y.transpose(1, 2)
        if self.layout == "positions, turned":
            return y.permute(0, -1, 1)
        if self.layout == "positions, summed behind":
            # The sum over samples and positions depends on where they lie.
            return (y + self.bias).transpose(1, 2)
        image = y.view(samples, 5, positions // 5, classes).permute(0, 3, 1, 2)
        return image if self.layout == "channels last" else image.contiguous()


LAYOUTS = (
    "rows",
    "positions",
    "positions, turned",
    "positions, summed behind",
    "channels last",
    "image",
)


def draw(
    samples: int = 4, positions: int = 330, classes: int = CLASSES, seed: int = 1
) -> tuple[Tensor, Tensor]:
    """Inputs, and classes of which some are to be ignored."""
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(samples, positions, WIDTH, generator=generator)
    target = torch.randint(0, classes, (samples, positions), generator=generator)
    return x, target.masked_fill(torch.rand(target.shape, generator=generator) < 0.2, IGNORED)


def train(model: Head, x: Tensor, target: Tensor, room: Any = None, **options: Any) -> list[Tensor]:
    """Loss and gradients of one step; rows of losses are weighed."""
    model.zero_grad()
    with room or nullcontext():
        y = model(x)
        shape = (y.shape[0], *y.shape[2:])
        loss = functional.cross_entropy(y, target.reshape(shape), **options)
        del y
        scale = torch.linspace(-1, 1, loss.numel()).view(loss.shape)
        result = loss if loss.dim() == 0 else (loss * scale.to(loss.dtype)).sum()
    assert room is None or is_ours(loss)
    result.backward()
    if room is not None:
        nothing_is_left(room)
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def is_ours(loss: Tensor) -> bool:
    nodes, names = [loss.grad_fn], set[str]()
    while nodes:
        node: Any = nodes.pop()
        names.add(node.name())
        nodes.extend(n for n, _ in node.next_functions if n is not None)
    return "CrossEntropyBackward" in names


def nearness(plain: list[Tensor], ours: list[Tensor]) -> float:
    """Squared error of the gradient beside its square."""
    pairs = list(zip(plain[1:], ours[1:], strict=True))
    error = sum(float((a - b).double().square().sum()) for a, b in pairs)
    return error / sum(float(a.double().square().sum()) for a, _ in pairs)
