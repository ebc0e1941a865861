"""Velocities in three dimensions, where the history of a loop outgrows any memory.

A section of n x n points has a history of n^2 values a step, a volume n^3, and about n steps are
needed to cross either: 100 MB become 100 GB. The waves, surveys and loops are those of a section.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from elbowroom.errors import InvalidArgument
from elbowroom.science.seismic.survey import Survey
from elbowroom.science.seismic.waves import SPONGE_POINTS, Medium, courant_limit


@dataclass(frozen=True, kw_only=True)
class Volume:
    """Metres a second at the points of a grid: depth, then two horizontal distances."""

    m_per_s: Tensor
    spacing_m: float

    def __post_init__(self) -> None:
        values = self.m_per_s
        if not isinstance(values, Tensor):
            raise InvalidArgument(
                f"m_per_s must be a tensor, got {type(values).__name__}: pass "
                "torch.as_tensor(values, dtype=torch.float32)"
            )
        if values.dim() != 3 or min(values.shape) < 5:
            raise InvalidArgument(
                f"a volume of at least 5 x 5 x 5 points was expected, got {list(values.shape)}"
            )
        if not bool((values > 0).all() & torch.isfinite(values).all()):
            raise InvalidArgument("velocities must be positive and finite")
        if not self.spacing_m > 0:
            raise InvalidArgument(f"spacing_m must be positive, got {self.spacing_m}")

    def medium(self, *, step_s: float | None = None, sponge_points: int = SPONGE_POINTS) -> Medium:
        """The medium with its sponge, for nine tenths of the longest step by default."""
        fastest = float(self.m_per_s.detach().max())
        longest = self.spacing_m * courant_limit(3) / fastest
        step_s = 0.9 * longest if step_s is None else step_s
        if not 0 < step_s <= longest:
            raise InvalidArgument(
                f"step_s must be positive and at most {longest:.3g} s, or waves would grow without "
                f"end in this volume, got {step_s:.3g}: make it shorter or the grid coarser"
            )
        return Medium.of_values(
            self.m_per_s, spacing_m=self.spacing_m, step_s=step_s, sponge_points=sponge_points
        )


def dome(
    points: int = 32,
    *,
    spacing_m: float = 20.0,
    top_m_per_s: float = 1500.0,
    bottom_m_per_s: float = 3000.0,
) -> Volume:
    """Return a made-up volume: velocities rise with depth, and a fast dome comes up from below."""
    across = torch.linspace(-1, 1, points)
    depth = torch.linspace(0, 1, points)[:, None, None]
    height = 0.45 * torch.exp(-4 * (across[:, None] ** 2 + across[None, :] ** 2))
    rising = top_m_per_s + 0.6 * (bottom_m_per_s - top_m_per_s) * depth
    values = torch.where(depth > 1 - height, torch.full_like(rising, bottom_m_per_s), rising)
    return Volume(m_per_s=values, spacing_m=spacing_m)


def grid_survey(
    volume: Volume,
    *,
    receivers: int = 6,
    depth_points: int = 2,
    steps: int = 100,
    peak_hz: float = 8.0,
) -> Survey:
    """One shot in the middle, and receivers x receivers of them in a square near the surface."""
    _, width, length = volume.m_per_s.shape

    def line(size: int) -> Tensor:
        ends = size / (2 * receivers)
        return torch.linspace(ends, size - 1 - ends, receivers).round().long()

    square = torch.cartesian_prod(torch.tensor([depth_points]), line(width), line(length))
    source = torch.tensor([[depth_points, width // 2, length // 2]])
    return Survey(sources=source, receivers=square, steps=steps, peak_hz=peak_hz)
