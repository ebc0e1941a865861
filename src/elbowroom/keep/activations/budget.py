"""Meeting a budget of memory: what is kept, encoded and computed again, for the least time."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from elbowroom.errors import BudgetUnreachable
from elbowroom.keep.activations.gauge import (
    Gauge,
    device_of,
    gauge_of,
    return_freed_memory,
    use_small_pages,
)
from elbowroom.keep.activations.ledger import say_bytes
from elbowroom.keep.activations.recompute import candidates
from elbowroom.keep.activations.sites import Site

_log = logging.getLogger("elbowroom")

# Left free: the next batch may differ a little from those that were measured.
MARGIN = 0.03


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One tensor, or what is known of it: kept or encoded."""

    site: Site
    plain_bytes: int
    coded_bytes: int
    seconds: float
    """For encoding and decoding it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """A module that can run again in backward."""

    name: str
    seconds: float
    """Of its forward."""

    input_bytes: int
    """Encoded: what is left to keep of it."""

    plain_bytes: int
    """What it holds for a while when it runs again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrangement:
    """What is done with each tensor and region, and what it costs."""

    kept: frozenset[Site]
    regions: frozenset[str]
    held_bytes: int
    seconds: float


def arrange(
    choices: Sequence[Choice], regions: Sequence[Region], held_bytes: int
) -> Arrangement | None:
    """The fastest arrangement that holds at most so many bytes; None when there is none.

    A mixed-integer program: for every tensor kept or encoded, unless its region runs again.
    """
    from scipy import optimize

    limit: Any = optimize.Bounds
    milp, LinearConstraint = optimize.milp, optimize.LinearConstraint  # noqa: N806

    count, areas = len(choices), len(regions)
    if count == 0:
        return Arrangement(kept=frozenset(), regions=frozenset(), held_bytes=0, seconds=0.0)
    place = {region.name: 2 * count + i for i, region in enumerate(regions)}
    size = 2 * count + areas + 1  # the last: bytes of the largest region at work
    seconds, held = np.zeros(size), np.zeros(size)
    each = np.zeros((count, size))
    for i, choice in enumerate(choices):
        held[2 * i], held[2 * i + 1] = choice.plain_bytes, choice.coded_bytes
        seconds[2 * i + 1] = choice.seconds
        each[i, 2 * i] = each[i, 2 * i + 1] = 1
        region = _region_of(choice.site, place)
        if region is not None:
            each[i, region] = 1
    at_work = np.zeros((areas, size))
    for i, region in enumerate(regions):
        seconds[place[region.name]] = region.seconds
        held[place[region.name]] = region.input_bytes
        at_work[i, place[region.name]], at_work[i, -1] = -region.plain_bytes, 1
    held[-1] = 1
    whole = np.ones(size)
    whole[-1] = 0
    limits = np.ones(size)
    limits[-1] = np.inf
    scale = max(1.0, float(held_bytes))
    result = milp(
        seconds,
        constraints=[
            LinearConstraint(each, 1, 1),
            LinearConstraint(held[None, :] / scale, -np.inf, held_bytes / scale),
            *([LinearConstraint(at_work / scale, 0, np.inf)] if areas else []),
        ],
        integrality=whole,
        bounds=limit(np.zeros(size), limits),
        options={"mip_rel_gap": 0.01, "time_limit": 5},
    )
    if result.x is None:
        return None
    chosen = result.x > 0.5
    chosen[-1] = False
    return Arrangement(
        kept=frozenset(choices[i].site for i in range(count) if chosen[2 * i]),
        regions=frozenset(r.name for r in regions if chosen[place[r.name]]),
        held_bytes=int(held[chosen].sum()),
        seconds=float(seconds[chosen].sum()),
    )


def least_bytes(choices: Sequence[Choice], regions: Sequence[Region]) -> int:
    """The fewest bytes that can be held."""
    inside = {region.name: 0 for region in regions}
    total = 0
    for choice in choices:
        name = next((n for n in inside if _is_inside(choice.site, n)), None)
        if name is None:
            total += choice.coded_bytes
        else:
            inside[name] += choice.coded_bytes
    return total + sum(min(inside[r.name], r.input_bytes) for r in regions)


def _is_inside(site: Site, name: str) -> bool:
    return site.key[0] == name or site.key[0].startswith(name + ".")


def _region_of(site: Site, place: dict[str, int]) -> int | None:
    return next((place[name] for name in place if _is_inside(site, name)), None)


class Budget:
    """Watches the peak from pass to pass, and arranges what is held so that it stays below."""

    def __init__(self, model: nn.Module, limit_bytes: int, report: Callable[[str], None]) -> None:
        device = device_of(model)
        self._gauge: Gauge = gauge_of(device)
        self._modules = candidates(model)
        self._limit = limit_bytes
        self._report = report
        self._passes = 0
        self._least = 2**63  # peak with as little held as possible
        self._growth = 1.1  # bytes of peak for a byte that is held: heaps have holes
        self.arrangement: Arrangement | None = None
        self.peak_bytes = 0
        if device.type != "cuda":
            use_small_pages()
            return_freed_memory(at_once=True)
        if self._gauge.now() > limit_bytes:
            raise BudgetUnreachable(
                f"the process holds {say_bytes(self._gauge.now())} before the first step, more "
                f"than the budget of {say_bytes(limit_bytes)}: no arrangement of activations can "
                "meet it"
            )
        self._gauge.reset()

    @property
    def modules(self) -> list[nn.Module]:
        """Those that run again in backward."""
        if self.arrangement is None:
            return []
        return [self._modules[name] for name in self.arrangement.regions]

    def next_pass(self, sites: Iterable[Site], seconds: dict[str, float]) -> None:
        """The last step is over: compare its peak with the budget, and arrange the next."""
        choices = [
            Choice(
                site=site,
                plain_bytes=site.plain_bytes,
                coded_bytes=site.coded_bytes,
                seconds=site.encode_s + site.decode_s,
            )
            for site in sites
            if site.plain_bytes > 0
        ]
        held_bytes = sum(self._held_bytes(choice) for choice in choices)
        self.peak_bytes = self._gauge.peak()
        self._gauge.reset()
        self._passes += 1
        if self._passes <= 2 or not choices:
            # The optimizer makes its state in the first step: the second one tells the truth.
            return
        if not any(choice.site.is_kept for choice in choices):
            self._least = min(self._least, self.peak_bytes)
        over = self.peak_bytes > self._limit
        if over:
            self._give_way(choices, seconds)
        elif self._passes > 12 and self._passes % 32:
            return
        free = self._limit * (1 - MARGIN) - self.peak_bytes
        # Half of what is free at a time, so that the peak comes to the limit from below.
        room = held_bytes + int(free / self._growth * (0.5 if free > 0 else 1.0))
        regions = self._regions(choices, seconds)
        found = arrange(choices, regions, max(room, 0))
        if found is None:
            # As little as possible: whether it is enough, the next step will show.
            found = Arrangement(
                kept=frozenset(),
                regions=frozenset(region.name for region in regions),
                held_bytes=least_bytes(choices, regions),
                seconds=0.0,
            )
        known = self.arrangement
        if known is None or (len(known.kept), known.regions) != (len(found.kept), found.regions):
            self._report(
                f"budget {say_bytes(self._limit)}, peak {say_bytes(self.peak_bytes)}: "
                f"{len(found.kept)} tensors kept, {len(choices) - len(found.kept)} encoded, "
                f"{len(found.regions)} regions computed again"
            )
        self.arrangement = found

    def _give_way(self, choices: Sequence[Choice], seconds: dict[str, float]) -> None:
        """The last step took too much: expect more of every byte, or give up."""
        if any(choice.site.is_kept for choice in choices):
            self._growth *= 1.2
            return
        tried = frozenset[str]() if self.arrangement is None else self.arrangement.regions
        if (
            self._passes > 3
            and self._least > self._limit
            and len(tried) == len(self._regions(choices, seconds))
        ):
            raise BudgetUnreachable(
                f"the budget of {say_bytes(self._limit)} cannot be met: with everything encoded or "
                f"computed again a step took {say_bytes(self._least)}: raise the budget to "
                f"{say_bytes(int(self._least * (1 + MARGIN)))}, or make the batch smaller"
            )

    def _held_bytes(self, choice: Choice) -> int:
        """In the last pass."""
        if choice.site.is_kept:
            return choice.plain_bytes
        regions = () if self.arrangement is None else self.arrangement.regions
        inside = any(_is_inside(choice.site, name) for name in regions)
        return 0 if inside else choice.coded_bytes

    def _regions(self, choices: Sequence[Choice], seconds: dict[str, float]) -> list[Region]:
        regions: list[Region] = []
        for name in self._modules:
            inside = [c for c in choices if _is_inside(c.site, name)]
            if inside and name in seconds:
                regions.append(
                    Region(
                        name=name,
                        seconds=seconds[name],
                        input_bytes=max(c.coded_bytes for c in inside),
                        plain_bytes=sum(c.plain_bytes for c in inside),
                    )
                )
        return regions
