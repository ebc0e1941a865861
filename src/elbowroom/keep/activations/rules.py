"""From observed gradients to bounds: the rules that a user can choose."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from torch import nn

from elbowroom.keep.activations.allocation import Demand, allocate
from elbowroom.keep.activations.noise import Noise
from elbowroom.keep.activations.observer import Observer
from elbowroom.keep.activations.payloads import SAMPLE
from elbowroom.keep.activations.policy import ENOUGH, spread
from elbowroom.keep.activations.reach import Costs, Variances
from elbowroom.keep.activations.sensitivity import Effect
from elbowroom.keep.activations.sites import Site


class Rule(Enum):
    """How bounds follow from gradients."""

    VARIANCE = "variance"
    """Errors add at most `tolerance` to the gradient's own variance; bytes are least."""

    COMET = "comet"
    """A weight gradient's error has a standard deviation of 0.01 of its mean momentum; inputs of
    layers with weights only, everything else is kept as it is."""

    CERTIFIED = "certified"
    """No element of a weight gradient moves further than `tolerance` times its root mean square;
    inputs of layers with weights only."""


COMET_SHARE = 0.01

# The whole tolerance would have to save this share of what plain autograd holds. Short of that less
# is spent: the first tenth of a tolerance saves far more than the rest.
WORTH = 0.2

# What the smaller codec alone would save beyond enough, so that the faster one can be taken too.
HASTE = 1.15

# Of the tolerance: the most that noise may be of a gradient that it joins, anywhere on its way.
# Adam divides every coordinate by its own size, so that small gradients count as much as large
# ones; queries and keys have a hundredth of the gradient of values, and often the same matrix.
NOISY = 0.2

# Of all samples together: values of which rates are computed. Where a model saves thousands of
# tensors, there is little time for each.
_VALUES, _LEAST_VALUES = 1 << 16, 1 << 10

# Of a parameter's own limit: the most that it is planned to get. Predictions are right to a factor
# of two or so, and no parameter is to have three times its limit.
EACH = 1.0

# Squared gradients that differ by less from batch to batch are usual.
FAR = 4.0


@dataclass(frozen=True, slots=True)
class Decision:
    """A site's new bound, and the share of the gradient's variance that it will add."""

    site: Site
    bound: float
    share: float
    part_share: float
    """The same where only the meter's part of a batch is run."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the gradients of one pass have shown."""

    observer: Observer
    variances: Variances
    noise: Noise
    parameters: dict[int, nn.Parameter]

    saved_bytes: int
    """What plain autograd would have held."""

    other_bytes: int
    """What is held of it without a bound: masks, statistics and the like."""

    @classmethod
    def of(
        cls,
        observer: Observer,
        parameters: Iterable[nn.Parameter],
        noise: Noise,
    ) -> "Evidence":
        """Gathered when backward has ended."""
        known = {id(p): p for p in parameters}
        noise.note_portions(known.values(), observer.portions.shares())
        variances = Variances(
            observer.journeys, known.values(), noise, observer.portions.cancelled()
        )
        return cls(observer, variances, noise, known, *observer.totals())


def decide(
    rule: Rule,
    evidence: Evidence,
    tolerance: float,
    trust: float,
    limits: Mapping[int, float] | None = None,
) -> list[Decision]:
    """New bounds for the sites that the pass has shown.

    Args:
        rule: How bounds follow from gradients.
        evidence: What the pass has shown.
        tolerance: Of the whole gradient.
        trust: What the meter has found: true errors over those of the closed forms.
        limits: Tolerances of single parameters by their id, the whole gradient's for all others.
            Whatever reaches a parameter with a limit of 0 is kept exactly.
    """
    limits = limits or {}
    exact = {leaf for leaf, limit in limits.items() if limit == 0}
    if not evidence.variances.total > 0:
        return []
    if rule is Rule.VARIANCE:
        return _by_variance(evidence, tolerance, trust, limits)
    bound_of = _comet if rule is Rule.COMET else _certified(tolerance)
    return _by_layer(evidence, bound_of, exact)


def _by_variance(
    evidence: Evidence, tolerance: float, trust: float, limits: Mapping[int, float]
) -> list[Decision]:
    """The bounds that cost least bytes within the tolerance."""
    sites: list[Site] = []
    demands: list[Demand] = []
    costs: list[tuple[float, float, float]] = []
    each: list[NDArray[np.float64]] = []
    exact: list[Decision] = []
    leaves = evidence.variances.leaves
    limit = np.array([limits.get(leaf, tolerance) for leaf in leaves], np.float64)
    # Errors grow with gradients: after one that is far too small there will be usual ones again.
    lull = evidence.noise.lull(evidence.parameters.values())
    swing = lull if lull > FAR else 1.0
    for site, effect in evidence.observer.effects.items():
        cost = evidence.variances.costs(effect)
        scale = spread(site.sample)
        if _reaches(cost, limit == 0):
            exact.append(Decision(site, 0.0, 0.0, 0.0))
            continue
        finite = math.isfinite(cost.overall + cost.mean + scale + float(cost.each.sum()))
        if site.sample is None or not scale > 0 or not finite:
            # Gradients that overflowed say nothing: the bound stays as it was.
            continue
        # Uniform errors have variance b^2 / 3, at values that are not zero.
        dense = float((site.sample != 0).float().mean())
        factor = trust * swing * dense / 3
        sites.append(site)
        costs.append((factor * cost.overall, factor * cost.mean, factor * cost.of_part))
        each.append(factor * cost.each / np.where(limit > 0, EACH * limit, 1.0))
        demands.append(
            Demand(
                count=evidence.observer.counts[site],
                scale=scale,
                sample=site.sample.numpy()[:: _stride(len(evidence.observer.effects))],
                largest=min(
                    evidence.observer.largest[site], _quiet(effect, dense, NOISY * tolerance)
                ),
                cost=factor * (cost.overall + cost.mean) / 2,
                known=site.densely(),
            )
        )
    if not sites:
        return exact
    plain_bits = 8 * evidence.saved_bytes
    bounds = np.array(
        allocate(
            demands,
            tolerance,
            floor=WORTH * plain_bits / tolerance,
            goal_bits=plain_bits / (HASTE * ENOUGH) - 8 * evidence.other_bytes,
            each=np.array(each),
        )
    )
    shares = np.array(costs) * bounds[:, None] ** 2
    # Neither the whole gradient nor the mean layer may have more than the tolerance.
    excess = min(1.0, tolerance / max(float(shares[:, :2].sum(0).max()), 1e-300))
    shares *= excess / swing
    return exact + [
        Decision(site, float(bound) * excess**0.5, float(share[0]), float(share[2]))
        for site, bound, share in zip(sites, bounds, shares, strict=True)
    ]


def _reaches(cost: Costs, places: NDArray[np.bool_]) -> bool:
    """Whether any error comes to these parameters."""
    return bool(places.any()) and bool((cost.touched[places] != 0).any())


def _stride(sites: int) -> int:
    """Which part of a full sample is enough where there are so many."""
    return SAMPLE // min(SAMPLE, max(_LEAST_VALUES, _VALUES // sites))


def _quiet(effect: Effect, dense: float, share: float) -> float:
    """The loosest bound with which noise is at most this share of any gradient that it joins."""
    noisiest = dense * max(effect.handed_on.values(), default=0.0) / 3
    return (share / noisiest) ** 0.5 if noisiest > 0 else math.inf


_BoundOf = Callable[[Evidence, Effect, float], float]


def _by_layer(evidence: Evidence, bound_of: _BoundOf, exact: set[int]) -> list[Decision]:
    """Every site by itself."""
    decisions: list[Decision] = []
    for site, effect in evidence.observer.effects.items():
        if exact & effect.local.keys():
            decisions.append(Decision(site, 0.0, 0.0, 0.0))
            continue
        if site.sample is None or not effect.local:
            continue
        dense = float((site.sample != 0).float().mean())
        bound = bound_of(evidence, effect, dense)
        if bound > 0:
            cost = evidence.variances.costs(effect)
            variance = dense / 3 * bound**2
            shares = (cost.overall * variance, cost.of_part * variance)
            decisions.append(Decision(site, bound, *shares))
    return decisions


def _comet(evidence: Evidence, effect: Effect, dense: float) -> float:
    # sigma^2 = b^2 / 3 R (sum of g^2) for every weight, here averaged over the layer.
    bounds = [
        COMET_SHARE
        * evidence.noise.momentum(evidence.parameters[leaf])
        * (3 * evidence.parameters[leaf].numel() / (value * dense)) ** 0.5
        for leaf, value in effect.local.items()
        if leaf in evidence.parameters and value * dense > 0
    ]
    return min(bounds, default=0.0)


def _certified(tolerance: float) -> _BoundOf:
    def bound_of(evidence: Evidence, effect: Effect, dense: float) -> float:
        # |error of a weight's gradient| <= b (sum of |g|).
        if not effect.largest > 0:
            return 0.0
        sizes = [evidence.noise.size(evidence.parameters[leaf]) for leaf in effect.local]
        return tolerance * min(sizes) / effect.largest

    return bound_of
