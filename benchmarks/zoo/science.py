"""Graphs, neural operators and small networks of science."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.entry import Subject, entry


def _graph(nodes: int, edges: int, width: int) -> Any:
    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(nodes, width, generator=generator)
        ends = torch.randint(nodes, (2, edges), generator=generator)
        mean = torch.zeros(nodes, width).index_add_(0, ends[1], x[ends[0]])
        return x, ends, (mean[:, :8].argmax(1))

    return draw


def _nodes(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    x, ends, target = batch
    return functional.cross_entropy(model(x, ends), target)


def _of_graphs(name: str, **how: Any) -> Subject:
    import torch_geometric.nn as graphs

    model = getattr(graphs, name)(64, 128, num_layers=3, out_channels=8, **how)
    return Subject(model=model.train(), batch=_graph(6000, 30000, 64), loss=_nodes)


@entry("gcn", "torch-geometric")
def gcn() -> Subject:
    return _of_graphs("GCN", dropout=0.2)


@entry("gat", "torch-geometric")
def gat() -> Subject:
    return _of_graphs("GAT", heads=4)


@entry("gin", "torch-geometric")
def gin() -> Subject:
    return _of_graphs("GIN", norm="batch_norm")


def _flow(batch: int, size: int) -> Any:
    """A field, and what it becomes once it has spread."""

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 1, size, size, generator=generator)
        kernel = torch.ones(1, 1, 5, 5) / 25
        y = functional.conv2d(functional.pad(x, (2, 2, 2, 2), "circular"), kernel)
        return x, y * 4

    return draw


def _fit(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return functional.mse_loss(model(x), y)


@entry("fno", "neuraloperator")
def fno() -> Subject:
    from neuralop.models import FNO

    model = FNO(n_modes=(12, 12), in_channels=1, out_channels=1, hidden_channels=32, n_layers=3)
    return Subject(model=model.train(), batch=_flow(8, 64), loss=_fit)


@entry("uno", "neuraloperator")
def uno() -> Subject:
    from neuralop.models import UNO

    model = UNO(
        in_channels=1,
        out_channels=1,
        hidden_channels=24,
        n_layers=3,
        uno_out_channels=[24, 24, 24],
        uno_n_modes=[[8, 8], [6, 6], [8, 8]],
        uno_scalings=[[1.0, 1.0], [0.5, 0.5], [2, 2]],
    )
    return Subject(model=model.train(), batch=_flow(8, 64), loss=_fit)


@entry("lstm cells", "torch")
def lstm_cells() -> Subject:
    """The sine waves of PyTorch's examples: two cells, one step of a series at a time."""

    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LSTMCell(1, 51), nn.LSTMCell(51, 51)
            self.last = nn.Linear(51, 1)

        def forward(self, series: Tensor) -> Tensor:
            h, c, k, d = (series.new_zeros(series.shape[0], 51) for _ in range(4))
            found: list[Tensor] = []
            for value in series.split(1, dim=1):
                h, c = self.first(value, (h, c))
                k, d = self.second(h, (k, d))
                found.append(self.last(k))
            return torch.cat(found, dim=1)

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        phase = 60 * torch.rand(97, 1, generator=generator)
        wave = ((torch.arange(201) + phase) / 20).sin()
        return wave[:, :-1], wave[:, 1:]

    return Subject(model=Cells().train(), batch=draw, loss=_fit, rate=1e-2)


@entry("se cnn", "torch")
def se_cnn() -> Subject:
    """A small network with squeeze-and-excitation gates and SiLU in place, for CIFAR-10."""

    class Gate(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

        def forward(self, x: Tensor) -> Tensor:
            s = functional.silu(self.one(x.mean((2, 3), keepdim=True)), inplace=True)
            return x * self.two(s).sigmoid()

    def block(before: int, after: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.SiLU(inplace=True),
            Gate(after),
        )

    model = nn.Sequential(
        block(3, 32),
        block(32, 32),
        nn.MaxPool2d(2),
        block(32, 64),
        block(64, 64),
        nn.MaxPool2d(2),
        block(64, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    from benchmarks.zoo.entry import pictures

    def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, target = batch
        return functional.cross_entropy(model(x), target)

    return Subject(model=model.train(), batch=pictures(128, 3, (32, 32), 10), loss=classify)
