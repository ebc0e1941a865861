"""Sound waves in two dimensions: p_tt = c^2 (p_xx + p_zz) + source, in steps of time.

Second order in time and fourth in space. Around the section lies a sponge, in which waves are
damped (Cerjan et al. 1985), so that nothing comes back from the border.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from elbowroom.errors import InvalidArgument
from elbowroom.science.seismic.velocity import Velocity

# Weights of the second difference, fourth order: the centre and its neighbours at 1 and 2.
_STENCIL = (-5 / 2, 4 / 3, -1 / 12)

# Of the sponge: points on each side, and how fast a wave dies in it.
SPONGE_POINTS = 30
_DAMPING = 0.0053

State = tuple[Tensor, Tensor]
"""The pressure now and one step ago: shots x depth x distance, sponge included."""


def longest_step_s(velocity: Velocity) -> float:
    """The longest step of time for which the scheme is stable.

    The largest eigenvalue of the second difference is sum |w| in each direction, and a step is
    stable while c^2 dt^2 times both is at most 4 (von Neumann).
    """
    each = abs(_STENCIL[0]) + 2 * sum(abs(w) for w in _STENCIL[1:])
    fastest = float(velocity.m_per_s.detach().max())
    return 2 * velocity.spacing_m / (fastest * math.sqrt(2 * each))


def ricker(peak_hz: float, steps: int, step_s: float) -> Tensor:
    """The second derivative of a Gaussian, quiet at its start."""
    t = torch.arange(steps, dtype=torch.float64) * step_s - 1.2 / peak_hz
    square = (math.pi * peak_hz * t) ** 2
    return (1 - 2 * square) * torch.exp(-square)


@dataclass(frozen=True, kw_only=True)
class Medium:
    """A section with its sponge, ready for steps of one length."""

    squared: Tensor
    """(c dt / dx)^2 at every point."""

    damping: Tensor
    step_s: float
    spacing_m: float
    sponge_points: int

    @classmethod
    def of(
        cls,
        velocity: Velocity,
        *,
        step_s: float | None = None,
        sponge_points: int = SPONGE_POINTS,
    ) -> "Medium":
        """Make one, for nine tenths of the longest step by default; gradients flow through."""
        longest = longest_step_s(velocity)
        step_s = 0.9 * longest if step_s is None else step_s
        if not 0 < step_s <= longest:
            raise InvalidArgument(
                f"step_s must be positive and at most {longest:.3g} s, or waves would grow without "
                f"end in this model, got {step_s:.3g}: make it shorter or the grid coarser"
            )
        pad = (sponge_points,) * 4
        wide = functional.pad(velocity.m_per_s[None, None], pad, "replicate")[0, 0]
        ramps = [_ramp(length, sponge_points, wide) for length in wide.shape]
        return cls(
            squared=(wide * (step_s / velocity.spacing_m)) ** 2,
            damping=ramps[0][:, None] * ramps[1][None, :],
            step_s=step_s,
            spacing_m=velocity.spacing_m,
            sponge_points=sponge_points,
        )

    def quiet(self, shots: int) -> State:
        """The state before anything happens."""
        still = self.squared.new_zeros((shots, *self.squared.shape))
        return still, still.clone()

    def step(self, state: State, source: Tensor) -> State:
        """One step of time; the source is what is added to the pressure, dense or zero-padded."""
        now, before = state
        after = 2 * now - before + self.squared * laplacian(now) + source
        return after * self.damping, now * self.damping


def laplacian(field: Tensor) -> Tensor:
    """The sum of both second differences times the spacing squared; zero beyond the border."""
    total = 2 * _STENCIL[0] * field
    for distance, weight in enumerate(_STENCIL[1:], 1):
        wide = functional.pad(field, (distance,) * 4)
        middle = slice(distance, -distance)
        step = 2 * distance
        total = total + weight * (
            wide[..., :-step, middle]
            + wide[..., step:, middle]
            + wide[..., middle, :-step]
            + wide[..., middle, step:]
        )
    return total


def _ramp(length: int, sponge_points: int, like: Tensor) -> Tensor:
    """One inside, and less the deeper in the sponge."""
    at = torch.arange(length, dtype=like.dtype, device=like.device)
    inside = torch.minimum(at, length - 1 - at)
    depth = (sponge_points - inside).clamp_min(0)
    return torch.exp(-((_DAMPING * 20 / max(1, sponge_points) * depth) ** 2) * 9)
