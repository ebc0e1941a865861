"""A survey: where it bangs, where it is heard, and what is recorded."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elbowroom import keep
from elbowroom.errors import InvalidArgument
from elbowroom.keep.loops.loop import Store
from elbowroom.science.seismic.velocity import Velocity
from elbowroom.science.seismic.waves import Indices, Medium, State, ricker


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Shots and receivers at points of the grid, and how long is listened."""

    sources: Tensor
    """Shots x 2: depth and distance, in points; shots x 3 in a volume."""

    receivers: Tensor
    """Receivers x 2, the same for every shot."""

    steps: int
    peak_hz: float

    def __post_init__(self) -> None:
        for name in ("sources", "receivers"):
            points = getattr(self, name)
            is_whole = isinstance(points, Tensor) and not points.is_floating_point()
            if not is_whole or points.is_complex():
                raise InvalidArgument(
                    f"{name} must be whole numbers of points in a tensor, such as "
                    f"torch.tensor([[2, 10], [2, 20]]), got "
                    f"{points.dtype if isinstance(points, Tensor) else type(points).__name__}"
                )
            if points.dim() != 2 or points.shape[1] not in (2, 3) or len(points) == 0:
                raise InvalidArgument(
                    f"{name} must be points of depth and distance, an array of n x 2 or, in a "
                    f"volume, n x 3, got {list(points.shape)}"
                )
        if self.steps < 1 or not self.peak_hz > 0:
            raise InvalidArgument(
                f"steps and peak_hz must be positive, got {self.steps} and {self.peak_hz}"
            )

    def part(self, shots: slice) -> "Survey":
        """The same survey with some of its shots, such as those of one rank."""
        return replace(self, sources=self.sources[shots])


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
    if shots < 1 or receivers < 1:
        raise InvalidArgument(
            f"shots and receivers must be at least 1 each, got {shots} and {receivers}"
        )

    def line(count: int) -> Tensor:
        ends = width / (2 * count)
        at = torch.linspace(ends, width - 1 - ends, count).round().long()
        return torch.stack([torch.full_like(at, depth_points), at], 1)

    return Survey(sources=line(shots), receivers=line(receivers), steps=steps, peak_hz=peak_hz)


def record(
    medium: Medium,
    survey: Survey,
    *,
    memory: str | float | None = None,
    slots: int | tuple[int, int] | None = None,
    store: Store | None = None,
    tolerance: float = 0.0,
    loop: Callable[..., Any] | None = None,
) -> Tensor:
    """Return the pressure at the receivers: shots x receivers x steps.

    Gradients flow to `medium.squared`, and from there to the velocities. With nothing given,
    autograd keeps a field of every step; `memory`, `slots`, `store` and `tolerance` bound that, as
    those of `er.loop` do. `loop` runs the steps in its place, such as a `Runner`.
    """
    state, wavelet, at, heard_at = _prepare(medium, survey)

    def step(state: State, value: Tensor) -> tuple[State, Tensor]:
        state = medium.push(state, at, value)
        return state, state[0].flatten(1).index_select(1, heard_at)

    choices: dict[str, Any] = {
        "memory": memory,
        "slots": slots,
        "store": store,
        "tolerance": tolerance,
    }
    if loop is not None and any(choices.values()):
        raise InvalidArgument(
            f"a loop was given beside {', '.join(n for n, v in choices.items() if v)}: choose "
            "where the loop is made"
        )
    run = partial(keep.loop, **choices) if loop is None else loop
    _, traces = run(step, state, inputs=wavelet, outputs=True, parameters=(medium.squared,))
    return traces.permute(1, 2, 0)


@torch.no_grad()
def record_change(medium: Medium, of_squared: Tensor, survey: Survey) -> Tensor:
    """Return what a small change of `medium.squared` changes at the receivers: J v.

    A second wave runs beside the first, and where that bends, the change is its source. Nothing is
    kept, however many steps there are.
    """
    state, wavelet, at, heard_at = _prepare(medium, survey)
    change = medium.quiet(len(survey.sources))

    def step(both: tuple[State, State], value: Tensor) -> tuple[tuple[State, State], Tensor]:
        both = medium.push_both(*both, of_squared, at, value)
        return both, both[1][0].flatten(1).index_select(1, heard_at)

    _, traces = keep.loop(step, (state, change), inputs=wavelet, outputs=True)
    return traces.permute(1, 2, 0)


def _prepare(medium: Medium, survey: Survey) -> tuple[State, Tensor, Indices, Tensor]:
    """The first state, the wavelet, where it bangs and where it is heard."""
    state = medium.quiet(len(survey.sources))
    wavelet = ricker(survey.peak_hz, survey.steps, medium.step_s).to(state[0])
    sources, receivers = (_places(p, medium) for p in (survey.sources, survey.receivers))
    at = (torch.arange(len(sources), device=sources.device), *sources.T)
    return state, wavelet, at, _flat(receivers, medium.squared.shape)


def _flat(points: Tensor, shape: torch.Size) -> Tensor:
    """Numbers of points in the flattened grid."""
    flat = points[:, 0]
    for side in range(1, len(shape)):
        flat = flat * shape[side] + points[:, side]
    return flat


def _places(points: Tensor, medium: Medium) -> Tensor:
    """The points in the grid with its sponge."""
    inner = torch.tensor([length - 2 * medium.sponge_points for length in medium.squared.shape])
    if points.shape[1] != len(inner):
        raise InvalidArgument(
            f"sources and receivers must have {len(inner)} numbers each, as the grid has sides, "
            f"got {points.shape[1]}"
        )
    if bool(((points < 0) | (points >= inner)).any()):
        raise InvalidArgument(
            f"sources and receivers must lie in the section of {inner.tolist()} points, got "
            f"{points.tolist()[:4]}..."
        )
    return (points + medium.sponge_points).to(medium.squared.device)
