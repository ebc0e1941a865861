"""Parts of a batch tell the variance of its gradient, whatever the mean does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations.noise import Noise
from elbowroom.keep.activations.portions import cut

BATCH = 24


class Pictures(nn.Module):
    """Convolutions of all kinds, with the normalisations that go with them."""

    def __init__(self, norm: type[nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU()),
            *(nn.Conv2d(16, 16, 3, padding=1, groups=4), norm(16), nn.ReLU()),
            *(nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(8, 4, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.view(BATCH, 3, 8, 8)).mean((2, 3))


class Words(nn.Module):
    """A matrix that is used twice, a table of places, a norm written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 24)
        self.places = nn.Parameter(0.1 * torch.randn(12, 24))
        self.norm, self.gain = nn.LayerNorm(24), nn.Parameter(torch.ones(24))
        self.up, self.down = nn.Linear(24, 48), nn.Linear(48, 24, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        words = (8 * x.view(BATCH, 12, 16)[:, :, 0]).long() % 32
        h = self.embed(words) + self.places
        h = h + self.down(functional.gelu(self.up(self.norm(h))))
        h = h * h.square().mean(-1, keepdim=True).add(1e-6).rsqrt() * self.gain
        return functional.linear(h, self.embed.weight).mean(1)[:, :4]


class Waves(nn.Module):
    """Complex weights: both parts count."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4, 8, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        modes = torch.fft.rfft(x.view(BATCH, 6, 32))[..., :8]
        return torch.einsum("bik,iok->bok", modes, self.weight).abs().mean(2)


def squares(network: Any, passes: int, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """By parameter: the variance as parts tell it, and in truth, over batches at fixed weights."""
    seen: list[dict[int, float]] = []
    monkeypatch.setattr(
        Noise, "note_portions", lambda self, parameters, shares: seen.append(shares)
    )
    room = er.Activations(network, refresh=1, meter=0)
    names = {id(p): name for name, p in network.named_parameters()}
    told: dict[str, list[float]] = {name: [] for name in names.values()}
    drawn: dict[str, list[Tensor]] = {name: [] for name in names.values()}
    torch.manual_seed(3)
    for _ in range(passes):
        x = torch.randn(BATCH, 192)
        with room:
            loss = (network(x) - x[:, :4]).square().mean()
        network.zero_grad()
        loss.backward()
        for name, p in network.named_parameters():
            g = torch.view_as_real(p.grad) if p.is_complex() else p.grad
            drawn[name].append(g.clone())
            share = seen[-1].get(id(p))
            if share is not None:
                told[name].append(share * float(g.square().sum()))
    return [
        {name: sum(found) / len(found) for name, found in told.items() if found},
        {name: float(torch.stack(found).var(0).sum()) for name, found in drawn.items()},
    ]


@pytest.mark.parametrize("kind", [Pictures, Words, Waves])
def test_parts_tell_the_variance(kind: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = kind()
    told, truth = squares(network, 40, monkeypatch)
    assert told.keys() == truth.keys()
    for name in truth:
        assert truth[name] / 1.7 < told[name] < truth[name] * 1.7, name


def test_behind_a_batch_norm_parts_tell_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it samples have to do with one another."""
    torch.manual_seed(0)
    told, truth = squares(Pictures(nn.BatchNorm2d), 24, monkeypatch)
    for name in ("layers.4.weight", "layers.4.bias", "layers.6.weight", "layers.7.weight"):
        assert truth[name] / 1.5 < told[name] < truth[name] * 1.5, name


def test_parts_are_equal_and_leave_out_little() -> None:
    assert cut(16, 16) == [slice(2 * i, 2 * i + 2) for i in range(8)]
    # Rows of a sample stay together.
    assert cut(12, 3) == [slice(0, 4), slice(4, 8), slice(8, 12)]
    assert [len(cut(n, n)) for n in (2, 5, 7, 9, 15)] == [2, 5, 7, 3, 5]
    # One sample tells nothing.
    assert cut(64, 1) == []


def follow(noise: Noise, *, share: float | None, scale: float = 1.0) -> nn.Parameter:
    """A mean gradient that turns by a tenth of a circle a step, with little noise."""
    parameter = nn.Parameter(torch.zeros(2, 256))
    generator = torch.Generator().manual_seed(1)
    for step in range(1, 13):
        angle = torch.tensor(step * torch.pi / 5)
        mean = torch.stack([angle.cos().expand(256), angle.sin().expand(256)])
        gradient = scale * (mean + 0.1 * torch.randn(2, 256, generator=generator))
        noise.observe(parameter, gradient, step)
        if share is not None:
            noise.note_portions([parameter], {id(parameter): share})
    return parameter


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_movement_that_differences_see_is_not_noise(scale: float) -> None:
    """Of 512 elements with a variance of 0.01 each, beside a mean of 256."""
    noise = Noise()
    parameter = follow(noise, share=5.12 / 261.12, scale=scale)
    assert noise.variance(parameter) == pytest.approx(5.12 * scale**2, rel=0.1)
    assert follow(other := Noise(), share=None) is not None
    assert sum(t.change for t in other._tracks.values()) > 0


def test_a_parameter_that_parts_do_not_show_is_corrected_like_its_neighbours() -> None:
    noise = Noise()
    shown = follow(noise, share=None)
    hidden = follow(noise, share=None)
    before = noise.variance(hidden)
    noise.note_portions([shown, hidden], {id(shown): 0.01})
    after, known = noise.variance(hidden), noise.variance(shown)
    assert before is not None
    assert after is not None
    assert after < before / 4
    assert after == pytest.approx(known)


def test_parts_that_differ_by_more_than_batches_do_count_little() -> None:
    """The first half of a batch may be of another kind than the second."""
    noise = Noise()
    parameter = nn.Parameter(torch.zeros(2, 256))
    generator = torch.Generator().manual_seed(1)
    for step in range(1, 13):
        noise.observe(parameter, 1 + 0.1 * torch.randn(2, 256, generator=generator), step)
        noise.note_portions([parameter], {id(parameter): 0.9})
    assert noise.variance(parameter) == pytest.approx(5.12, rel=0.2)
