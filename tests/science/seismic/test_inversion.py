"""Inversion: nearer to the truth and to what was heard, also with a coarse history."""

from typing import Any

import pytest
import torch

import elbowroom as er
from elbowroom.science.seismic import Inversion, Progress, Tikhonov, Velocity, invert, model_error

from .scene import SPONGE, WATER, Scene, off, scene


def run(here: Scene, **choices: Any) -> Inversion:
    return invert(
        here.survey,
        here.heard,
        here.start,
        step_s=here.step_s,
        water_rows=WATER,
        truth=here.truth,
        sponge_points=SPONGE,
        shots_at_once=2,
        **choices,
    )


@pytest.mark.parametrize(
    ("method", "iterations", "share"),
    [("lbfgs", 6, 0.35), ("gauss-newton", 2, 0.5), ("newton", 2, 0.5)],
)
def test_misfit_and_model_error_fall(method: Any, iterations: int, share: float) -> None:
    found = run(scene(), method=method, iterations=iterations, inner=4)
    assert len(found.misfits) == len(found.model_errors) == iterations + 1
    assert found.misfits == sorted(found.misfits, reverse=True)
    assert found.misfits[-1] < share * found.misfits[0]
    assert found.model_errors[-1] < 0.97 * found.model_errors[0]
    assert found.evaluations >= iterations + 1
    assert (found.products > 0) == (method != "lbfgs")


@pytest.mark.parametrize(("method", "iterations"), [("lbfgs", 5), ("gauss-newton", 2)])
def test_an_encoded_history_ends_at_the_same_place(method: Any, iterations: int) -> None:
    """With noise as real data have it: without, misfits fall to nothing and so do their shares."""
    here = scene(noise=0.2)
    # With more products, whether there are two or three hangs on the last digits of a residual.
    exact, coarse = (
        run(here, method=method, iterations=iterations, inner=2, store=store, tolerance=tolerance)
        for store, tolerance in ((None, 0.0), ("encoded", 0.01))
    )
    assert len(exact.misfits) == len(coarse.misfits) == iterations + 1
    assert coarse.misfits[-1] == pytest.approx(exact.misfits[-1], rel=0.01)
    assert coarse.model_errors[-1] == pytest.approx(exact.model_errors[-1], rel=0.01)
    assert off(coarse.first_gradient, exact.first_gradient) < 0.01
    assert coarse.probed and max(coarse.probed) < 0.01 and not exact.probed


def test_slots_find_the_same_model() -> None:
    exact, bounded = (run(scene(), iterations=2, slots=slots) for slots in (None, 12))
    assert off(bounded.velocity.m_per_s, exact.velocity.m_per_s) < 1e-5


def test_water_and_bounds_stay() -> None:
    here = scene()
    found = run(here, iterations=3, bounds_m_per_s=(1450.0, 2450.0))
    torch.testing.assert_close(found.velocity.m_per_s[:WATER], here.start.m_per_s[:WATER])
    below = found.velocity.m_per_s[WATER:]
    assert float(below.min()) >= 1449.9 and float(below.max()) <= 2450.1


def test_all_that_happens_is_told() -> None:
    seen: list[Progress] = []
    found = run(scene(), iterations=2, tell=seen.append)
    assert [one.iteration for one in seen] == [0, 1, 2]
    assert [one.misfit for one in seen] == found.misfits
    assert [one.model_error for one in seen] == found.model_errors
    assert torch.equal(seen[-1].velocity.m_per_s, found.velocity.m_per_s)
    assert torch.equal(seen[0].gradient, found.first_gradient)
    assert {one.penalty for one in seen} == {0.0}


def test_a_heavy_prior_holds_the_model() -> None:
    here = scene()
    free = run(here, iterations=3)
    reference = here.start.m_per_s
    for method, iterations in (("lbfgs", 3), ("gauss-newton", 1)):
        prior = Tikhonov(weight=1e4, reference=reference, order=0)
        held = run(here, iterations=iterations, method=method, inner=4, prior=prior)
        moved = (held.velocity.m_per_s - reference).norm()
        assert float(moved) < 0.3 * float((free.velocity.m_per_s - reference).norm())


def test_the_truth_is_where_it_ends() -> None:
    here = scene()
    found = invert(
        here.survey, here.heard, here.truth, step_s=here.step_s, sponge_points=SPONGE, iterations=3
    )
    assert found.misfits == [found.misfits[0]] and found.model_errors == []
    assert found.misfits[0] < 1e-10
    assert model_error(here.truth, here.truth) == 0


def test_what_cannot_be_is_refused() -> None:
    here = scene()
    with pytest.raises(er.InvalidArgument, match="method"):
        run(here, method="guess")
    with pytest.raises(er.InvalidArgument, match="bounds_m_per_s"):
        run(here, bounds_m_per_s=(1400.0, 9000.0))
    with pytest.raises(er.InvalidArgument, match="water_rows"):
        invert(here.survey, here.heard, here.start, step_s=here.step_s, water_rows=24)
    narrow = Velocity(m_per_s=here.start.m_per_s[:, :20], spacing_m=10.0)
    with pytest.raises(er.InvalidArgument, match="must lie in the section"):
        invert(here.survey, here.heard, narrow, step_s=here.step_s)
