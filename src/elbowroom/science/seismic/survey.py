"""A survey: where it bangs, where it is heard, and what is recorded."""

from dataclasses import dataclass

import torch
from torch import Tensor

from elbowroom.errors import InvalidArgument
from elbowroom.science.seismic.velocity import Velocity
from elbowroom.science.seismic.waves import Medium, ricker


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Shots and receivers at points of the grid, and how long is listened."""

    sources: Tensor
    """Shots x 2: depth and distance, in points."""

    receivers: Tensor
    """Receivers x 2, the same for every shot."""

    steps: int
    peak_hz: float

    def __post_init__(self) -> None:
        for name in ("sources", "receivers"):
            points = getattr(self, name)
            if points.dim() != 2 or points.shape[1] != 2 or len(points) == 0:
                raise InvalidArgument(
                    f"{name} must be points of depth and distance, an array of n x 2, got "
                    f"{list(points.shape)}"
                )
        if self.steps < 1 or not self.peak_hz > 0:
            raise InvalidArgument(
                f"steps and peak_hz must be positive, got {self.steps} and {self.peak_hz}"
            )


def line_survey(
    velocity: Velocity,
    *,
    shots: int = 4,
    receivers: int = 50,
    depth_points: int = 2,
    steps: int = 600,
    peak_hz: float = 10.0,
) -> Survey:
    """Shots and receivers at equal distances along a line near the surface."""
    width = velocity.m_per_s.shape[1]

    def line(count: int) -> Tensor:
        ends = width / (2 * count)
        at = torch.linspace(ends, width - 1 - ends, count).round().long()
        return torch.stack([torch.full_like(at, depth_points), at], 1)

    return Survey(sources=line(shots), receivers=line(receivers), steps=steps, peak_hz=peak_hz)


def record(medium: Medium, survey: Survey) -> Tensor:
    """Return the pressure at the receivers: shots x receivers x steps.

    A plain loop, through which gradients flow to the velocities; autograd keeps every step.
    """
    state = medium.quiet(len(survey.sources))
    wavelet = ricker(survey.peak_hz, survey.steps, medium.step_s).to(state[0])
    shape = state[0].shape[1:]
    sources, receivers = (_places(points, medium, shape) for points in _ends(survey))
    # A pressure added to one point is multiplied by (c dt)^2 / dx^2 there, as the equation has it.
    strength = medium.squared.flatten()[sources]
    shots = torch.arange(len(sources))
    traces: list[Tensor] = []
    for value in wavelet:
        source = torch.zeros_like(state[0]).flatten(1)
        source = source.index_put((shots, sources), value * strength).view_as(state[0])
        state = medium.step(state, source)
        traces.append(state[0].flatten(1)[:, receivers])
    return torch.stack(traces, 2)


def _ends(survey: Survey) -> tuple[Tensor, Tensor]:
    return survey.sources, survey.receivers


def _places(points: Tensor, medium: Medium, shape: torch.Size) -> Tensor:
    """Numbers of the points in the flattened grid with its sponge."""
    inner = torch.tensor([length - 2 * medium.sponge_points for length in shape])
    if bool(((points < 0) | (points >= inner)).any()):
        raise InvalidArgument(
            f"sources and receivers must lie in the section of {inner.tolist()} points, got "
            f"{points.tolist()[:4]}..."
        )
    wide = points + medium.sponge_points
    return wide[:, 0] * shape[1] + wide[:, 1]
