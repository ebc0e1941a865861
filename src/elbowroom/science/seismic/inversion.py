"""Full-waveform inversion: the model under the ground from what was heard above it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from elbowroom.errors import InvalidArgument
from elbowroom.keep.loops.loop import Store
from elbowroom.science.seismic.descent import Box, Newton, Point, Quasi, descend
from elbowroom.science.seismic.misfit import Misfit
from elbowroom.science.seismic.prior import KM, Prior
from elbowroom.science.seismic.runner import Runner
from elbowroom.science.seismic.survey import Survey
from elbowroom.science.seismic.velocity import Velocity
from elbowroom.science.seismic.waves import SPONGE_POINTS, courant_limit

# Of the mean velocity, how far a first step moves the value that it moves most.
_FIRST_STEP = 0.02

Method = Literal["lbfgs", "gauss-newton", "newton"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far an inversion is after so many iterations; 0 is its start."""

    iteration: int
    misfit: float
    """1/2 ||F(m) - d||^2, without the prior."""

    penalty: float
    """The prior's."""

    model_error: float | None
    """||m - truth|| / ||truth|| where the model is not fixed, if the truth is known."""

    velocity: Velocity
    gradient: Tensor
    """Of the misfit over its value at the start and the penalty, by velocities in km/s."""


@dataclass(frozen=True, kw_only=True)
class Inversion:
    """What came of it."""

    velocity: Velocity
    misfits: list[float]
    """At the start and after each iteration."""

    model_errors: list[float]
    """The same; empty if the truth is not known."""

    gradient: Tensor
    """At the end."""

    first_gradient: Tensor
    evaluations: int
    products: int
    probed: list[float]
    """Errors of gradients by an encoded history, as far as they were measured."""


def invert(
    survey: Survey,
    heard: Tensor,
    start: Velocity,
    *,
    step_s: float,
    method: Method = "lbfgs",
    iterations: int = 10,
    prior: Prior | None = None,
    bounds_m_per_s: tuple[float, float] | None = None,
    water_rows: int = 0,
    truth: Velocity | None = None,
    sponge_points: int = SPONGE_POINTS,
    shots_at_once: int = 1,
    memory: str | float | None = None,
    slots: int | tuple[int, int] | None = None,
    store: Store | None = None,
    tolerance: float = 0.0,
    inner: int = 8,
    across_ranks: bool = False,
    tell: Callable[[Progress], None] | None = None,
) -> Inversion:
    """Find the velocities that let hear what was heard.

    Minimises f(m) / f(start) + prior(m), with f the misfit.

    Args:
        survey: Where it banged and was heard.
        heard: Shots x receivers x steps.
        start: Where to begin; near enough that waves are off by less than half a period.
        step_s: The time between two samples of what was heard.
        method: "lbfgs", "gauss-newton" (conjugate gradients on J^T J) or "newton" (the same on the
            whole second derivative, stopped at negative curvature).
        iterations: At most; fewer if nothing leads down any more.
        prior: What is believed besides; nothing by default.
        bounds_m_per_s: The least and the greatest velocity. By default half the slowest of the
            start, and the fastest that is stable with `step_s`.
        water_rows: So many rows from the top are known, and stay.
        truth: The model that was looked for, if known: to measure the error.
        sponge_points: Around the section.
        shots_at_once: How many shots share a loop. Memory is that of these.
        memory: With `slots`, `store` and `tolerance`, as in `er.loop`, of one loop.
        slots: See `memory`.
        store: See `memory`.
        tolerance: See `memory`.
        inner: Of Newton's methods, the most products an iteration.
        across_ranks: The survey is this rank's share (`shots_of_rank`): all ranks add up.
        tell: Called at the start and after each iteration.
    """
    if method not in ("lbfgs", "gauss-newton", "newton"):
        raise InvalidArgument(f"method must be lbfgs, gauss-newton or newton, got {method!r}")
    if not isinstance(iterations, int) or iterations < 0 or inner < 1:
        raise InvalidArgument(
            "iterations must be a whole number from 0 on and inner from 1 on, got "
            f"{iterations} and {inner}"
        )
    for name, model in (("truth", truth), ("the prior's reference", prior)):
        values = model.reference if isinstance(model, Prior) else model and model.m_per_s
        if values is not None and values.shape != start.m_per_s.shape:
            raise InvalidArgument(
                f"{name} must have as many points as the start, {list(start.m_per_s.shape)}, got "
                f"{list(values.shape)}"
            )
    runner = Runner(memory=memory, slots=slots, store=store, tolerance=tolerance)
    misfit = Misfit(
        survey,
        heard,
        spacing_m=start.spacing_m,
        step_s=step_s,
        sponge_points=sponge_points,
        shots_at_once=shots_at_once,
        loop=runner,
        across_ranks=across_ranks,
    )
    box = _box(start, step_s, bounds_m_per_s, water_rows)
    first: float | None = None
    parts: dict[str, float] = {}

    def score(x: Tensor) -> tuple[float, Tensor]:
        nonlocal first
        value, gradient = misfit.gradient(KM * x)
        # A start that explains everything leaves nothing to divide by.
        first = (value or 1.0) if first is None else first
        penalty = 0.0 if prior is None else prior.value(KM * x)
        parts["misfit"], parts["penalty"] = value, penalty
        gradient = gradient * (KM / first)
        if prior is not None:
            gradient = gradient + prior.gradient(KM * x)
        return value / first + penalty, gradient

    def product(x: Tensor, direction: Tensor) -> Tensor:
        assert first is not None
        of = misfit.gauss_newton if method == "gauss-newton" else misfit.hessian
        found = of(KM * x, direction) * (KM * KM / first)
        return found if prior is None else found + prior.product(direction)

    first_step = _FIRST_STEP * float(start.m_per_s.mean()) / KM
    way: Quasi | Newton = Quasi(first_step=first_step)
    if method != "lbfgs":
        way = Newton(product, first_step=first_step, inner=inner)
    x = box.clamp(start.m_per_s.detach() / KM)
    point = Point(x=x, value=0.0, gradient=x)
    misfits: list[float] = []
    errors: list[float] = []
    first_gradient = x
    for iteration in range(iterations + 1):
        if iteration == 0:
            value, gradient = score(x)
            point = Point(x=x, value=value, gradient=gradient)
            first_gradient = gradient
        else:
            lower = descend(score, point, box, way)
            if lower is None:
                break
            point = lower
        misfits.append(parts["misfit"])
        velocity = Velocity(m_per_s=KM * point.x, spacing_m=start.spacing_m)
        error = None if truth is None else model_error(velocity, truth, water_rows=water_rows)
        errors += [] if error is None else [error]
        if tell is not None:
            tell(
                Progress(
                    iteration=iteration,
                    misfit=parts["misfit"],
                    penalty=parts["penalty"],
                    model_error=error,
                    velocity=velocity,
                    gradient=point.gradient,
                )
            )
    return Inversion(
        velocity=Velocity(m_per_s=KM * point.x, spacing_m=start.spacing_m),
        misfits=misfits,
        model_errors=errors,
        gradient=point.gradient,
        first_gradient=first_gradient,
        evaluations=misfit.evaluations,
        products=misfit.products,
        probed=runner.probed,
    )


def model_error(velocity: Velocity, truth: Velocity, *, water_rows: int = 0) -> float:
    """||m - truth|| / ||truth|| below the water."""
    found, looked_for = (v.m_per_s[water_rows:].double() for v in (velocity, truth))
    return float((found - looked_for).norm() / looked_for.norm())


def _box(
    start: Velocity, step_s: float, bounds: tuple[float, float] | None, water_rows: int
) -> Box:
    """In km/s."""
    values = start.m_per_s.detach()
    # A little below the limit, which rounding must not pass.
    stable = 0.9999 * start.spacing_m * courant_limit(values.dim()) / step_s
    if float(values.max()) > stable / 0.9999:
        raise InvalidArgument(
            f"step_s={step_s:.3g} is stable up to {stable:.0f} m/s, and the start has "
            f"{float(values.max()):.0f}: record with a shorter step, or start with a coarser grid"
        )
    low, high = bounds or (0.5 * float(values.min()), stable)
    if not 0 < low < high or high > stable / 0.9999:
        raise InvalidArgument(
            f"bounds_m_per_s must rise from above 0 to at most {stable:.0f}, the fastest that is "
            f"stable with step_s={step_s:.3g}, got {low:g} and {high:g}"
        )
    if not 0 <= water_rows < len(values):
        raise InvalidArgument(
            f"water_rows must leave some of the {len(values)} rows, got {water_rows}"
        )
    lows, highs = torch.full_like(values, low), torch.full_like(values, min(high, stable))
    lows[:water_rows] = highs[:water_rows] = values[:water_rows]
    return Box(low=lows / KM, high=highs / KM)
