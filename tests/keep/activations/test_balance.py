"""Parameters whose gradient is zero but for rounding stay where they are."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations.balance import Mean, Rows
from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.sites import Site


class Attending(nn.Module):
    """The bias of the keys adds the same to all logits of a row."""

    def __init__(self, *, is_explicit: bool = False) -> None:
        super().__init__()
        self.is_explicit = is_explicit
        self.norm = nn.LayerNorm(64)
        self.q, self.k, self.v, self.o = (nn.Linear(64, 64) for _ in range(4))
        self.still = self.k.bias
        nn.init.zeros_(self.still)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (4, 16)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.is_explicit:
            y = (q @ k.mT / 4).softmax(-1) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).flatten(2)).mean(1)


class Normalised(nn.Module):
    """What a bias adds to a channel, the normalisation takes off."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm, self.last = norm, nn.Conv2d(8, 64, 3, padding=1)
        self.still = self.first.bias
        nn.init.zeros_(self.first.bias)  # pyright: ignore[reportArgumentType]

    def forward(self, x: Tensor) -> Tensor:
        images = x.view(8, 3, 16, -1)
        return self.last(functional.silu(self.norm(self.first(images)))).square().mean((2, 3))


NETWORKS: dict[str, Callable[[], Any]] = {
    "attention": Attending,
    "explicit attention": lambda: Attending(is_explicit=True),
    "batch norm": lambda: Normalised(nn.BatchNorm2d(8)),
    "instance norm": lambda: Normalised(nn.InstanceNorm2d(8)),
    "groups of one channel": lambda: Normalised(nn.GroupNorm(8, 8)),
}


def moved(network: Any, room: er.Activations | None, optimizer: torch.optim.Optimizer) -> float:
    """How far AdamW takes the parameter."""
    torch.manual_seed(1)
    for _ in range(40):
        x = torch.randn(8, 48, 64)
        if room is None:
            loss = (network(x) - x[:, 0]).square().mean()
        else:
            with room:
                loss = (network(x) - x[:, 0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(network.still.detach().abs().max())


@pytest.mark.parametrize("name", NETWORKS)
def test_rounding_is_not_noise(name: str) -> None:
    torch.manual_seed(0)
    plain = NETWORKS[name]()
    ours = copy.deepcopy(plain)
    ours.still = ours.k.bias if isinstance(ours, Attending) else ours.first.bias
    plain_optimizer, optimizer = (
        torch.optim.AdamW(each.parameters(), 1e-3, weight_decay=0.0) for each in (plain, ours)
    )
    room = er.Activations(ours)
    expected = moved(plain, None, plain_optimizer)
    assert moved(ours, room, optimizer) <= 3 * expected
    # It was not kept exactly instead.
    assert any(row.bound > 0 for row in room.ledger.rows)


def test_channels_get_the_mean_that_was_saved() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 5, 5) + 3
    mean = Entry(x.mean((0, 2, 3)), Site(("", "", 0, 0), 0))
    near = x + 0.1 * torch.rand_like(x)
    found = Mean(mean).apply(near.clone())
    assert torch.allclose(found.mean((0, 2, 3)), x.mean((0, 2, 3)), atol=1e-6)
    # No value moved by more than the mean error of its channel.
    assert (found - near).abs().max() < 0.06


def test_rows_sum_to_one_and_zeros_stay() -> None:
    torch.manual_seed(0)
    p = torch.randn(4, 8, 8).masked_fill(torch.ones(8, 8).triu(1) > 0, -torch.inf).softmax(-1)
    p[0, 0] = 0  # everything masked
    near = p + 0.01 * torch.rand_like(p) * (p != 0)
    found = Rows(-1).apply(near.clone())
    assert torch.equal(found == 0, p == 0)
    sums = found.sum(-1)
    assert torch.allclose(sums.flatten()[1:], torch.ones(31), atol=1e-6)
    assert sums[0, 0] == 0
