"""Waves in three dimensions, through the same loop."""

from typing import Any

import pytest
import torch
from torch import Tensor

import elbowroom as er
from elbowroom.science.seismic import Survey, Volume, dome, grid_survey, record

from .scene import off


def uniform(size: int = 24) -> Volume:
    return Volume(m_per_s=torch.full((size,) * 3, 2000.0).double(), spacing_m=10.0)


def test_waves_arrive_after_distance_over_speed_and_spread() -> None:
    medium = uniform(30).medium(sponge_points=10)
    points = torch.tensor([[15, 15, 12], [15, 15, 24], [15, 24, 15]])
    survey = Survey(sources=torch.tensor([[15, 15, 3]]), receivers=points, steps=110, peak_hz=25.0)
    near, far, _ = record(medium, survey)[0]
    lags = [float(torch.roll(near, shift).dot(far)) for shift in range(60)]
    seconds = max(range(60), key=lags.__getitem__) * medium.step_s
    assert seconds == pytest.approx(120.0 / 2000.0, rel=0.05)
    # On a sphere, pressure falls as one over the distance: 90 m and 210 m.
    assert float(near.abs().max() / far.abs().max()) == pytest.approx(210 / 90, rel=0.15)


def test_all_sides_are_alike() -> None:
    medium = uniform(15).medium(sponge_points=5)
    points = torch.tensor([[11, 7, 7], [7, 11, 7], [7, 7, 11], [3, 7, 7]])
    survey = Survey(sources=torch.tensor([[7, 7, 7]]), receivers=points, steps=40, peak_hz=30.0)
    traces = record(medium, survey)[0]
    for other in traces[1:]:
        torch.testing.assert_close(other, traces[0], rtol=1e-9, atol=1e-12)


def gradient(**choices: Any) -> Tensor:
    made = dome(14)
    survey = grid_survey(made, receivers=3, steps=50)
    values = made.m_per_s.clone().requires_grad_()
    volume = Volume(m_per_s=values, spacing_m=made.spacing_m)
    traces = record(volume.medium(sponge_points=6), survey, **choices)
    assert traces.shape == (1, 9, 50)
    return torch.autograd.grad(traces.square().sum(), values)[0]


def test_gradients_in_bounded_memory() -> None:
    exact = gradient()
    assert float(exact.norm()) > 0
    assert off(gradient(slots=5), exact) < 1e-6
    assert 0 < off(gradient(store="encoded", tolerance=0.01), exact) < 0.01


def test_gradients_are_those_of_finite_differences() -> None:
    values = dome(8).m_per_s.double()
    survey = grid_survey(dome(8), receivers=2, steps=30, peak_hz=15.0)
    torch.manual_seed(0)
    direction = torch.randn_like(values)

    def loss(shift: Tensor) -> Tensor:
        volume = Volume(m_per_s=values + shift, spacing_m=20.0)
        medium = volume.medium(step_s=0.0028, sponge_points=4)
        return record(medium, survey).square().sum()

    shift = torch.zeros_like(values, requires_grad=True)
    (found,) = torch.autograd.grad(loss(shift), shift)
    ahead, behind = (float(loss(sign * 1e-2 * direction)) for sign in (1, -1))
    assert float((found * direction).sum()) == pytest.approx((ahead - behind) / 2e-2, rel=1e-5)


@pytest.mark.parametrize(
    ("values", "spacing_m", "said"),
    [
        (torch.ones(9, 9), 1.0, "5 x 5 x 5"),
        (torch.zeros(9, 9, 9), 1.0, "positive and finite"),
        (torch.ones(9, 9, 9), -1.0, "spacing_m"),
    ],
)
def test_what_is_no_volume_is_refused(values: Tensor, spacing_m: float, said: str) -> None:
    with pytest.raises(er.InvalidArgument, match=said):
        Volume(m_per_s=values, spacing_m=spacing_m)


def test_steps_and_points_that_do_not_fit() -> None:
    volume = uniform(8)
    with pytest.raises(er.InvalidArgument, match="at most"):
        volume.medium(step_s=1.0)
    flat = Survey(
        sources=torch.tensor([[2, 2]]), receivers=torch.tensor([[2, 3]]), steps=2, peak_hz=9.0
    )
    with pytest.raises(er.InvalidArgument, match="3 numbers each"):
        record(volume.medium(), flat)
