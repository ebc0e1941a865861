"""Waves through Marmousi as a loop whose gradient is wanted: one shot, its misfit, what it keeps.

The step is written so that autograd keeps one field of it, the second difference by which the
squared speed is multiplied; its time comes in two kinds. `plain` is what one writes in torch, with
slices of a padded field. `lean` has the second difference as a function that is its own adjoint,
added up in place: less than half the time, and so the hardest case for all that encodes.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from elbowroom.science.seismic import Medium, Velocity, marmousi, ricker, smooth

KERNELS = ("plain", "lean")

# Fourth order, in both directions: the neighbours at one and two points, and the centre.
_NEAR, _FAR, _CENTRE = 4 / 3, -1 / 12, -5.0

# Points a shortest wave has, so that frames are as smooth on a coarse grid as on a fine one.
_POINTS_A_WAVE = 10

# The start of an inversion is the true model, blurred by so many metres.
_BLUR_M = 200.0

_SHOT_DEPTH = 2

# Points around the source and rows around the receivers where a gradient is muted.
_MUTED_RADIUS, _MUTED_ROWS = 20, 12

State = tuple[Tensor, Tensor]


def plain_laplacian(field: Tensor) -> Tensor:
    """The second difference, as one writes it."""
    height, width = field.shape
    wide = functional.pad(field, (2, 2, 2, 2))

    def at(down: int, along: int) -> Tensor:
        return wide[2 + down : 2 + down + height, 2 + along : 2 + along + width]

    near = at(1, 0) + at(-1, 0) + at(0, 1) + at(0, -1)
    far = at(2, 0) + at(-2, 0) + at(0, 2) + at(0, -2)
    return _CENTRE * field + _NEAR * near + _FAR * far


class Laplacian(torch.autograd.Function):
    """The second difference, which is its own adjoint, since waves are zero beyond the border."""

    @staticmethod
    def forward(ctx: Any, field: Tensor) -> Tensor:
        """Add the neighbours up."""
        total = field * _CENTRE
        for distance, weight in ((1, _NEAR), (2, _FAR)):
            total[distance:].add_(field[:-distance], alpha=weight)
            total[:-distance].add_(field[distance:], alpha=weight)
            total[:, distance:].add_(field[:, :-distance], alpha=weight)
            total[:, :-distance].add_(field[:, distance:], alpha=weight)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """The same once more."""
        return Laplacian.apply(grads[0])


@dataclass(kw_only=True)
class Shot:
    """One shot over a model that is to be found: a step, its inputs, and the traces that came."""

    squared: Tensor
    """(c dt / dx)^2 of the model at hand, whose gradient is wanted."""

    damping: Tensor
    source: Tensor
    """A field with one point."""

    wavelet: Tensor
    row: int
    """Of the receivers, one at every point of it."""

    sponge: int
    kernel: str = "plain"
    observed: Tensor
    calls: int = 0
    """Steps made."""

    @property
    def steps(self) -> int:
        """Of the loop."""
        return len(self.wavelet)

    @property
    def field_bytes(self) -> int:
        """Of what one step keeps."""
        return self.squared.nbytes

    @property
    def history_bytes(self) -> int:
        """Of what all steps keep."""
        return self.steps * self.field_bytes

    def quiet(self) -> State:
        """The state before anything happens."""
        return torch.zeros_like(self.damping), torch.zeros_like(self.damping)

    def step(self, state: State, strength: Tensor) -> tuple[State, Tensor]:
        """One step of time, and what the receivers hear."""
        self.calls += 1
        now, before = state
        bend: Any = plain_laplacian(now) if self.kernel == "plain" else Laplacian.apply(now)
        after = (2 * now - before + self.squared * bend + strength * self.source) * self.damping
        # A copy: a view would hold the whole field.
        trace = after[self.row, self.sponge : -self.sponge].clone()
        return (after, now * self.damping), trace

    def misfit(self, traces: Tensor) -> Tensor:
        """How far the traces are from those observed."""
        return 0.5 * (traces - self.observed).square().sum()

    def muted(self) -> Tensor:
        """True where a gradient is looked at: not beside the source, nor the receivers."""
        down, along = torch.meshgrid(*(torch.arange(n) for n in self.source.shape), indexing="ij")
        at = self.source.flatten().argmax()
        row, column = at // self.source.shape[1], at % self.source.shape[1]
        far = (down - row) ** 2 + (along - column) ** 2 > _MUTED_RADIUS**2
        return far & ((down - self.row).abs() > _MUTED_ROWS)


def traces_of(shot: Shot) -> Tensor:
    """A for-loop: what the receivers hear, steps x receivers."""
    state, heard = shot.quiet(), []
    for strength in shot.wavelet:
        state, trace = shot.step(state, strength)
        heard.append(trace)
    return torch.stack(heard)


def make_shot(
    *,
    every: int,
    steps: int,
    kernel: str = "plain",
    at: float = 0.5,
    points: int | None = None,
    is_true: bool = False,
) -> Shot:
    """Marmousi on every so-manieth point, heard as it is, to be found from a blurred model.

    `points` shortens the section to so many a row, `at` is where along it the shot is, and with
    `is_true` nothing is left to be found.
    """
    true = marmousi().every(every)
    if points is not None:
        true = Velocity(m_per_s=true.m_per_s[:points, :points], spacing_m=true.spacing_m)
    start = smooth(true, over_m=_BLUR_M)
    # Both on the steps of the faster one.
    medium = Medium.of(true)
    blurred = Medium.of(start, step_s=medium.step_s)
    sponge = medium.sponge_points
    source = torch.zeros_like(medium.squared)
    width = true.m_per_s.shape[1]
    source[sponge + _SHOT_DEPTH, sponge + round(at * (width - 1))] = 1.0
    peak_hz = float(true.m_per_s.min()) / (_POINTS_A_WAVE * true.spacing_m)
    shot = Shot(
        squared=medium.squared.detach(),
        damping=medium.damping.detach(),
        source=source,
        wavelet=ricker(peak_hz, steps, medium.step_s).float(),
        row=sponge + _SHOT_DEPTH,
        sponge=sponge,
        kernel=kernel,
        observed=torch.empty(0),
    )
    with torch.no_grad():
        shot.observed = traces_of(shot)
    found = medium if is_true else blurred
    shot.squared = found.squared.detach().requires_grad_()
    shot.calls = 0
    return shot
