"""Waves: speed, stability, reciprocity, silence at the border, gradients."""

import math

import pytest
import torch
from torch import Tensor

import elbowroom as er
from elbowroom.science.seismic import (
    Medium,
    Survey,
    Velocity,
    layered,
    line_survey,
    longest_step_s,
    record,
    ricker,
)


def uniform(size: int = 60, m_per_s: float = 2000.0) -> Velocity:
    return Velocity(m_per_s=torch.full((size, size), m_per_s).double(), spacing_m=10.0)


def points(*pairs: tuple[int, int]) -> Tensor:
    return torch.tensor(pairs)


def test_waves_arrive_after_distance_over_speed() -> None:
    medium = Medium.of(uniform())
    near, far = (30, 40), (30, 55)
    survey = Survey(sources=points((30, 5)), receivers=points(near, far), steps=260, peak_hz=12.0)
    traces = record(medium, survey)[0]
    # The envelope of what passes has the same shape at both, but for its size.
    lags = [torch.roll(traces[0], shift).dot(traces[1]) for shift in range(120)]
    seconds = max(range(120), key=lambda shift: float(lags[shift])) * medium.step_s
    assert seconds == pytest.approx(150.0 / 2000.0, rel=0.02)


def test_a_shot_heard_there_is_there_heard_here() -> None:
    model = layered(50, 60)
    medium = Medium.of(Velocity(m_per_s=model.m_per_s.double(), spacing_m=model.spacing_m))
    here, there = (4, 6), (38, 50)

    def hear(source: tuple[int, int], receiver: tuple[int, int]) -> Tensor:
        survey = Survey(sources=points(source), receivers=points(receiver), steps=300, peak_hz=12.0)
        # The source is scaled by the medium around it; the scheme itself is symmetric.
        place = tuple(p + medium.sponge_points for p in source)
        return record(medium, survey)[0, 0] / medium.squared[place]

    forth = hear(here, there) / medium.squared[tuple(p + 30 for p in there)]
    back = hear(there, here) / medium.squared[tuple(p + 30 for p in here)]
    assert float(forth.abs().max()) > 0
    torch.testing.assert_close(forth, back, rtol=1e-9, atol=1e-12 * float(forth.abs().max()))


def test_nothing_comes_back_from_the_border() -> None:
    medium = Medium.of(uniform(40))
    state = medium.quiet(1)
    wavelet = ricker(15.0, 400, medium.step_s)
    most, last = 0.0, 0.0
    for step in range(400):
        source = torch.zeros_like(state[0])
        source[0, 50, 50] = wavelet[step] * medium.squared[50, 50]
        state = medium.step(state, source)
        inside = state[0][:, 30:-30, 30:-30]
        last = float(inside.square().sum())
        most = max(most, last)
    assert last < 1e-3 * most


def test_the_longest_step_is_the_last_stable_one() -> None:
    velocity = uniform(24)
    longest = longest_step_s(velocity)

    def size_after(step_s: float) -> float:
        medium = Medium.of(velocity, step_s=longest)
        squared = medium.squared * (step_s / longest) ** 2
        medium = Medium(
            squared=squared,
            damping=torch.ones_like(medium.damping),
            step_s=step_s,
            spacing_m=10.0,
            sponge_points=medium.sponge_points,
        )
        torch.manual_seed(0)
        # A wave of the shortest length, which is the first to grow.
        now = torch.randn(1, *squared.shape, dtype=torch.float64)
        state = now, now.clone()
        for _ in range(300):
            state = medium.step(state, torch.zeros(()))
        return float(state[0].abs().max())

    assert size_after(0.999 * longest) < 1e4
    assert size_after(1.02 * longest) > 1e12
    with pytest.raises(er.InvalidArgument, match="at most"):
        Medium.of(velocity, step_s=1.01 * longest)


def test_gradients_are_those_of_finite_differences() -> None:
    torch.manual_seed(0)
    values = layered(16, 20, layers=3).m_per_s.double()
    survey = Survey(
        sources=points((2, 5)), receivers=points((2, 10), (2, 15)), steps=60, peak_hz=25.0
    )
    step_s = 0.8 * longest_step_s(Velocity(m_per_s=values, spacing_m=10.0))

    def misfit(shift: Tensor) -> Tensor:
        velocity = Velocity(m_per_s=values + shift, spacing_m=10.0)
        medium = Medium.of(velocity, step_s=step_s, sponge_points=6)
        return record(medium, survey).square().sum()

    shift = torch.zeros_like(values, requires_grad=True)
    (gradient,) = torch.autograd.grad(misfit(shift), shift)
    direction = torch.randn_like(values)
    ahead, behind = (float(misfit(sign * 1e-3 * direction)) for sign in (1, -1))
    measured = (ahead - behind) / 2e-3
    assert float((gradient * direction).sum()) == pytest.approx(measured, rel=1e-6)


def test_the_wavelet_starts_in_silence_and_has_its_peak_frequency() -> None:
    wavelet = ricker(10.0, 1000, 1e-3)
    assert abs(float(wavelet[0])) < 1e-4
    spectrum = torch.fft.rfft(wavelet).abs()
    assert float(spectrum.argmax()) == pytest.approx(10.0, abs=1.0)


def test_points_outside_are_refused() -> None:
    medium = Medium.of(uniform(20))
    survey = Survey(sources=points((3, 20)), receivers=points((3, 3)), steps=3, peak_hz=10.0)
    with pytest.raises(er.InvalidArgument, match="must lie in the section"):
        record(medium, survey)
    with pytest.raises(er.InvalidArgument, match="n x 2"):
        Survey(sources=torch.zeros(2).long(), receivers=points((3, 3)), steps=3, peak_hz=10.0)


def test_a_line_of_shots_and_receivers() -> None:
    survey = line_survey(uniform(40), shots=2, receivers=8, steps=5)
    assert survey.sources.tolist() == [[2, 10], [2, 29]]
    assert len(set(map(tuple, survey.receivers.tolist()))) == 8
    traces = record(Medium.of(uniform(40)), survey)
    assert traces.shape == (2, 8, 5) and math.isfinite(float(traces.abs().sum()))
