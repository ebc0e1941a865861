"""Jet images: momentum is kept, and position, turning and mirroring of a jet do not matter."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from elbowroom.science.particles.images import draw_images

from .event_files import make_jets


def make_momenta(eta: Tensor, azimuth: Tensor, transverse: Tensor) -> Tensor:
    px, py = transverse * azimuth.cos(), transverse * azimuth.sin()
    pz = transverse * eta.sinh()
    energy = (px**2 + py**2 + pz**2).sqrt()
    return torch.stack([energy, px, py, pz], dim=-1)[None]


@pytest.fixture
def jet() -> tuple[Tensor, Tensor, Tensor]:
    eta = torch.tensor([0.0, 0.31, -0.17, 0.52, 0.0])
    azimuth = torch.tensor([0.0, 0.13, 0.09, -0.24, 0.0])
    return eta, azimuth, torch.tensor([100.0, 60.0, 30.0, 25.0, 0.0])


def test_pixels_have_the_shares_of_momentum(jet: tuple[Tensor, Tensor, Tensor]) -> None:
    image = draw_images(make_momenta(*jet), pixels=40)
    assert image.shape == (1, 1, 40, 40)
    lit = image[image > 0].sort(descending=True).values
    torch.testing.assert_close(lit, torch.tensor([100.0, 60.0, 30.0, 25.0]) / 215)


@pytest.mark.parametrize("azimuth", [0.0, 1.0, math.pi, -3.1])
def test_where_a_jet_flies_does_not_matter(
    azimuth: float, jet: tuple[Tensor, Tensor, Tensor]
) -> None:
    eta, around, transverse = jet
    moved = make_momenta(eta + 0.7, around + azimuth, 3 * transverse)
    torch.testing.assert_close(
        draw_images(moved, pixels=20), draw_images(make_momenta(*jet), pixels=20)
    )


@pytest.mark.parametrize("turn", [0.4, 2.0, math.pi])
def test_turned_and_mirrored_jets_look_alike(
    turn: float, jet: tuple[Tensor, Tensor, Tensor]
) -> None:
    eta, azimuth, transverse = jet
    x = eta * math.cos(turn) - azimuth * math.sin(turn)
    y = eta * math.sin(turn) + azimuth * math.cos(turn)
    plain = draw_images(make_momenta(*jet), pixels=12)
    torch.testing.assert_close(draw_images(make_momenta(x, y, transverse), pixels=12), plain)
    torch.testing.assert_close(draw_images(make_momenta(-x, y, transverse), pixels=12), plain)


def test_what_lies_outside_is_cut_and_empty_jets_are_dark() -> None:
    far = make_momenta(torch.tensor([0.0, 3.0]), torch.zeros(2), torch.tensor([99.0, 1.0]))
    assert float(draw_images(far).sum()) == pytest.approx(0.99)
    assert float(draw_images(torch.zeros(2, 5, 4)).abs().sum()) == 0


def test_three_prongs_spread_more_than_one() -> None:
    momenta, labels = make_jets(60)
    images = draw_images(torch.from_numpy(momenta), pixels=20)
    lit = (images > 0).sum(dim=(1, 2, 3)).numpy()
    assert lit[labels == 1].mean() > 1.5 * lit[labels == 0].mean()
    assert np.allclose(images.sum(dim=(1, 2, 3)), 1, atol=0.1)
