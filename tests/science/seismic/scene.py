"""A small section, a survey of it, and what was heard there: what the tests of inversions share."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from elbowroom.science.seismic import (
    Medium,
    Misfit,
    Survey,
    Velocity,
    layered,
    line_survey,
    longest_step_s,
    record,
    smooth,
)

SPONGE = 10
WATER = 4


@dataclass(frozen=True, kw_only=True)
class Scene:
    """All that an inversion is given, and the truth."""

    truth: Velocity
    start: Velocity
    survey: Survey
    heard: Tensor
    step_s: float

    def medium(self, m_per_s: Tensor) -> Medium:
        """Of a model on the same grid."""
        velocity = Velocity(m_per_s=m_per_s, spacing_m=self.truth.spacing_m)
        return Medium.of(velocity, step_s=self.step_s, sponge_points=SPONGE)

    def misfit(self, **choices: object) -> Misfit:
        """Of all shots."""
        return Misfit(
            self.survey,
            self.heard,
            spacing_m=self.truth.spacing_m,
            step_s=self.step_s,
            sponge_points=SPONGE,
            **choices,  # type: ignore[arg-type]
        )


@cache
def scene(
    *,
    depth: int = 24,
    width: int = 36,
    shots: int = 2,
    steps: int = 120,
    noise: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Scene:
    """Three layers under water that is known; the start is blurred. Nobody changes it."""
    made = layered(depth, width, layers=3, bottom_m_per_s=2500.0)
    truth = Velocity(m_per_s=made.m_per_s.to(dtype), spacing_m=made.spacing_m)
    survey = line_survey(truth, shots=shots, receivers=12, steps=steps, peak_hz=15.0)
    step_s = 0.8 * longest_step_s(truth)
    heard = record(Medium.of(truth, step_s=step_s, sponge_points=SPONGE), survey)
    drawn = torch.Generator().manual_seed(0)
    sounds = torch.randn(heard.shape, generator=drawn).to(heard)
    heard = heard + noise * heard.square().mean().sqrt() * sounds
    blurred = smooth(truth, over_m=60.0).m_per_s
    values = torch.cat([truth.m_per_s[:WATER], blurred[WATER:]])
    start = Velocity(m_per_s=values, spacing_m=truth.spacing_m)
    return Scene(truth=truth, start=start, survey=survey, heard=heard, step_s=step_s)


def off(found: Tensor, expected: Tensor) -> float:
    """The relative error."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())
