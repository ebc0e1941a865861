"""Sound waves: p_tt = c^2 (p_xx + p_zz) + source, in steps of time, in two or three dimensions.

Second order in time and fourth in space. Around the section lies a sponge, in which waves are
damped (Cerjan et al. 1985), so that nothing comes back from the border.
"""

import math
from dataclasses import dataclass
from typing import Any

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

Indices = tuple[Tensor, ...]
"""Of one point a shot: the shot, then the point along every side of the grid."""


def longest_step_s(velocity: Velocity) -> float:
    """The longest step of time for which the scheme is stable."""
    fastest = float(velocity.m_per_s.detach().max())
    return velocity.spacing_m * courant_limit(velocity.m_per_s.dim()) / fastest


def courant_limit(dimensions: int) -> float:
    """The largest c dt / dx for which the scheme is stable.

    The largest eigenvalue of the second difference is sum |w| in each direction, and a step is
    stable while c^2 dt^2 times all of them is at most 4 (von Neumann).
    """
    each = abs(_STENCIL[0]) + 2 * sum(abs(w) for w in _STENCIL[1:])
    return 2 / math.sqrt(dimensions * each)


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
        return cls.of_values(
            velocity.m_per_s,
            spacing_m=velocity.spacing_m,
            step_s=step_s,
            sponge_points=sponge_points,
        )

    @classmethod
    def of_values(
        cls, m_per_s: Tensor, *, spacing_m: float, step_s: float, sponge_points: int
    ) -> "Medium":
        """Make one of a grid with any number of sides; nobody looks whether the step is stable."""
        if sponge_points < 0:
            raise InvalidArgument(f"sponge_points must be a number from 0 on, got {sponge_points}")
        pad = (sponge_points,) * (2 * m_per_s.dim())
        wide = functional.pad(m_per_s[None, None], pad, "replicate")[0, 0]
        damping = torch.ones_like(wide, requires_grad=False)
        for side, length in enumerate(wide.shape):
            ramp = _ramp(length, sponge_points, wide.detach())
            damping = damping * ramp.view([-1 if d == side else 1 for d in range(wide.dim())])
        return cls(
            squared=(wide * (step_s / spacing_m)) ** 2,
            damping=damping,
            step_s=step_s,
            spacing_m=spacing_m,
            sponge_points=sponge_points,
        )

    def quiet(self, shots: int) -> State:
        """The state before anything happens."""
        still = self.squared.new_zeros((shots, *self.squared.shape))
        return still, still.clone()

    def step(self, state: State, source: Tensor) -> State:
        """One step of time; the source is what is added to the pressure, dense or zero-padded."""
        return self._step(state, laplacian(state[0], self.squared.dim()), source)

    def push(self, state: State, at: Indices, value: Tensor) -> State:
        """One step of time with a source at one point of each shot, part of the wave equation.

        It is added to the Laplacian, the only field of a step that autograd saves. That sum is
        p_tt / c^2, which has no peak where the source is, and so an encoded history of it is
        several times as exact as one of the Laplacian alone.
        """
        curve = laplacian(state[0], self.squared.dim())
        return self._step(state, curve.index_put_(at, value, accumulate=True), None)

    def push_both(
        self, state: State, change: State, of_squared: Tensor, at: Indices, value: Tensor
    ) -> tuple[State, State]:
        """The same, and what a small change of `squared` changes in it: its derivative."""
        curve = laplacian(state[0], self.squared.dim()).index_put_(at, value, accumulate=True)
        now, before = self._step(change, laplacian(change[0], self.squared.dim()), None)
        now = now.addcmul_(of_squared * self.damping, curve)
        return self._step(state, curve, None), (now, before)

    def _step(self, state: State, curve: Tensor, source: Tensor | None) -> State:
        """What is changed in place is nobody else's, and nothing that autograd saves."""
        now, before = state
        after = (2 * now).sub_(before).addcmul_(self.squared, curve)
        if source is not None:
            after = after.add_(source)
        return after.mul_(self.damping), now * self.damping


def laplacian(field: Tensor, dimensions: int = 2) -> Tensor:
    """The sum of the second differences times the spacing squared; zero beyond the border."""
    return _Laplacian.apply(field, dimensions)  # pyright: ignore[reportReturnType]


class _Laplacian(torch.autograd.Function):
    """A symmetric matrix: backward and forward mode are the same function again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(field: Tensor, dimensions: int) -> Tensor:
        total = field * (dimensions * _STENCIL[0])
        for side in range(-dimensions, 0):
            length = field.shape[side]
            for distance, weight in enumerate(_STENCIL[1:], 1):
                here, there = (side, distance, length - distance), (side, 0, length - distance)
                total.narrow(*here).add_(field.narrow(*there), alpha=weight)
                total.narrow(*there).add_(field.narrow(*here), alpha=weight)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.dimensions = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return laplacian(grads[0], ctx.dimensions), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return laplacian(tangents[0], ctx.dimensions)


def _ramp(length: int, sponge_points: int, like: Tensor) -> Tensor:
    """One inside, and less the deeper in the sponge."""
    at = torch.arange(length, dtype=like.dtype, device=like.device)
    inside = torch.minimum(at, length - 1 - at)
    depth = (sponge_points - inside).clamp_min(0)
    return torch.exp(-((_DAMPING * 20 / max(1, sponge_points) * depth) ** 2) * 9)
