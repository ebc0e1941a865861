"""The misfit: parts add up, and derivatives of second order are what they are called."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import elbowroom as er
from elbowroom.science.seismic import record, record_change

from .scene import off, scene


def directions(count: int = 2) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(1)
    shape = scene().start.m_per_s.shape
    return [torch.randn(shape, generator=drawn, dtype=torch.float64) for _ in range(count)]


def dot(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum())


def test_shots_one_at_a_time_add_up() -> None:
    here = scene(dtype=torch.float64)
    alone, together = here.misfit(), here.misfit(shots_at_once=2)
    value, gradient = alone.gradient(here.start.m_per_s)
    other, whole = together.gradient(here.start.m_per_s)
    assert (
        value == pytest.approx(other, rel=1e-12) == pytest.approx(alone.value(here.start.m_per_s))
    )
    assert off(gradient, whole) < 1e-12
    assert alone.value(here.truth.m_per_s) == 0
    assert (alone.evaluations, alone.products) == (3, 0)


def test_gauss_newton_is_symmetric_and_positive() -> None:
    here = scene(dtype=torch.float64)
    misfit, (v, w) = here.misfit(shots_at_once=2), directions()
    at = here.start.m_per_s
    image, other = misfit.gauss_newton(at, v), misfit.gauss_newton(at, w)
    assert dot(w, image) == pytest.approx(dot(v, other), rel=1e-9)
    assert dot(v, image) > 0 and dot(w, other) > 0
    # It is the square of how the traces change.
    traces = [record(here.medium(at + sign * 1e-3 * v), here.survey) for sign in (1, -1)]
    change = (traces[0] - traces[1]) / 2e-3
    assert dot(v, image) == pytest.approx(dot(change, change), rel=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_the_wave_of_a_change_is_the_derivative_in_forward_mode() -> None:
    here = scene(dtype=torch.float64, steps=60)
    medium = here.medium(here.start.m_per_s)
    drawn = torch.Generator().manual_seed(2)
    change = torch.rand(medium.squared.shape, generator=drawn, dtype=torch.float64)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(medium.squared, change)
        heard = record(replace(medium, squared=dual), here.survey)
        expected = forward_ad.unpack_dual(heard).tangent
    assert expected is not None
    assert off(record_change(medium, change, here.survey), expected) < 1e-13


def test_the_second_derivative_is_that_of_finite_differences() -> None:
    here = scene(dtype=torch.float64, steps=60)
    misfit, (v, w) = here.misfit(shots_at_once=2), directions()
    at = here.start.m_per_s
    ahead, behind = (misfit.gradient(at + sign * 1e-2 * v)[1] for sign in (1, -1))
    image = misfit.hessian(at, v)
    assert off(image, (ahead - behind) / 2e-2) < 1e-5
    assert dot(w, image) == pytest.approx(dot(v, misfit.hessian(at, w)), rel=1e-8)
    # Where nothing is left to explain, both second derivatives are one.
    at = here.truth.m_per_s
    assert off(misfit.gauss_newton(at, v), misfit.hessian(at, v)) < 1e-10


def test_products_in_bounded_memory() -> None:
    here = scene(dtype=torch.float64, steps=40)
    (v,) = directions(1)
    at = here.start.m_per_s
    plain, bounded = here.misfit(), here.misfit(loop=partial(er.loop, slots=6))
    assert off(bounded.gauss_newton(at, v), plain.gauss_newton(at, v)) < 1e-12
    assert off(bounded.hessian(at, v), plain.hessian(at, v)) < 1e-12
    coarse = here.misfit(loop=partial(er.loop, store="encoded", tolerance=0.01))
    assert off(coarse.gauss_newton(at, v), plain.gauss_newton(at, v)) < 0.01


def test_what_does_not_fit_is_refused() -> None:
    here = scene()
    with pytest.raises(er.InvalidArgument, match="shots x receivers x steps"):
        type(here.misfit())(here.survey, here.heard[:, 1:], spacing_m=10.0, step_s=here.step_s)
    with pytest.raises(er.InvalidArgument, match="shots_at_once"):
        here.misfit(shots_at_once=0)
