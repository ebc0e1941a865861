"""What cannot be surveyed or inverted is refused in one sentence."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from elbowroom.errors import InvalidArgument
from elbowroom.science import seismic

MODEL = seismic.layered(12, 14)
STEP_S = 0.7 * seismic.longest_step_s(MODEL)
SURVEY = seismic.line_survey(MODEL, shots=1, receivers=4, steps=8)
SILENCE = torch.zeros(1, 4, 8)


def inverted(**choices: Any) -> seismic.Inversion:
    options: dict[str, Any] = {"step_s": STEP_S, "iterations": 0, "sponge_points": 2, **choices}
    return seismic.invert(SURVEY, options.pop("heard", SILENCE), MODEL, **options)


def points(values: Any) -> seismic.Survey:
    return seismic.Survey(sources=values, receivers=SURVEY.receivers, steps=8, peak_hz=10.0)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: seismic.Velocity(m_per_s=np.ones((9, 9)), spacing_m=1.0), "torch.as_tensor"),  # pyright: ignore[reportArgumentType]
    (lambda: seismic.Volume(m_per_s=np.ones((9, 9, 9)), spacing_m=1.0), "torch.as_tensor"),  # pyright: ignore[reportArgumentType]
    (lambda: MODEL.every(0), "from 1 on, got 0"),
    (lambda: seismic.smooth(MODEL, over_m=0.0), "over_m must be a positive width"),
    (lambda: seismic.line_survey(MODEL, shots=0), "at least 1 each, got 0 and 50"),
    (lambda: seismic.line_survey(MODEL, receivers=0), "at least 1 each, got 4 and 0"),
    (lambda: seismic.Medium.of(MODEL, sponge_points=-1), "sponge_points must be"),
    (lambda: points(torch.tensor([[2.0, 3.0]])), "whole numbers of points .* got torch.float32"),
    (lambda: points([[2, 3]]), "whole numbers of points .* got list"),
    (lambda: inverted(heard=SILENCE * torch.nan), "heard has values that are not finite"),
    (lambda: inverted(method="best"), "method must be lbfgs, gauss-newton or newton"),
    (lambda: inverted(iterations=1.5), "iterations must be a whole number"),
    (lambda: inverted(method="newton", inner=0), "inner from 1 on, got 0 and 0"),
    (lambda: inverted(truth=seismic.layered(13, 14)), r"truth must have .* \[12, 14\], got \[13"),
    (
        lambda: inverted(prior=seismic.Tikhonov(weight=1.0, reference=torch.ones(3, 3))),
        "reference must have as many points",
    ),
    (lambda: inverted(step_s=9 * STEP_S), r"is stable up to \d+ m/s, and the start has 3500"),
    (lambda: inverted(across_ranks=True), "init_process_group first"),
    (lambda: seismic.shots_of_rank(SURVEY), "init_process_group first"),
    (lambda: seismic.find_by_gradients(torch.zeros_like, MODEL), "no direction is active"),
    (lambda: seismic.find_by_gradients(lambda m: m * torch.nan, MODEL), "must be finite"),
    (lambda: seismic.find_by_gradients(lambda m: m, MODEL, water_rows=12), "water_rows leaves"),
    (
        lambda: seismic.find_by_curvature(torch.zeros_like, MODEL.m_per_s),
        "products must be finite and not all zero",
    ),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_refusals(number: int) -> None:
    attempt, said = WRONG[number]
    with pytest.raises(InvalidArgument, match=said):
        attempt()


def test_what_is_right_is_not_refused() -> None:
    assert inverted().misfits[0] > 0
