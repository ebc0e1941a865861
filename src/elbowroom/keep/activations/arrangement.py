"""The fastest way to hold what a pass keeps below a given peak: a mixed-integer program."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elbowroom.keep.activations.sites import Form, Site
from elbowroom.keep.activations.timeline import Holding, Timeline

Row = NDArray[np.float64]

# For writing and reading the least tensor.
_VISIT_S = 2e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Tensors that share a storage, or one that does not: they are held alike."""

    sites: tuple[Site, ...]
    plain: Row
    coded: Row
    """Bytes in each stretch when they are kept as they are, and encoded."""

    seconds: float
    """For encoding and decoding them."""

    offload_s: float
    """On top of that, for writing and reading what is encoded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """A module that can run again in backward."""

    name: str
    seconds: float
    """Of its forward."""

    held: Row
    """Bytes in each stretch when it does: its input, and everything while it runs again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What can be done, and what is there whatever is done."""

    rest: Row
    """Bytes in each stretch, without the choices."""

    choices: tuple[Choice, ...]
    regions: tuple[Region, ...] = ()
    can_offload: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrangement:
    """What is done with each tensor and region, and what it costs."""

    forms: dict[Site, Form] = field(default_factory=dict[Site, Form])
    """Of those that are not encoded."""

    regions: frozenset[str] = frozenset()
    peak_bytes: int = 0
    seconds: float = 0.0

    def count(self, form: Form) -> int:
        """How many tensors have this form."""
        return sum(found is form for found in self.forms.values())


def state(
    timeline: Timeline,
    regions: dict[str, float],
    *,
    growth: float,
    bytes_per_s: float | None,
) -> Problem:
    """What a measured pass leaves to choose.

    Args:
        timeline: Of a pass.
        regions: Seconds of the forwards of modules that can run again.
        growth: Bytes of peak for a byte that is held on top: heaps have holes.
        bytes_per_s: How fast the disk takes and gives; None where there is none.
    """
    stretches = len(timeline.peaks)
    rest = np.array(timeline.peaks, np.float64)
    groups: dict[int, list[Holding]] = {}
    for holding in timeline.holdings:
        if holding.is_movable and holding.plain_bytes:
            groups.setdefault(holding.storage, []).append(holding)
    for group in groups.values():
        rest -= _held(timeline, group)
    choices = tuple(_choice(timeline, group, growth, bytes_per_s) for group in groups.values())
    areas = [
        _region(timeline, name, seconds, growth, stretches) for name, seconds in regions.items()
    ]
    return Problem(
        rest=rest,
        choices=choices,
        regions=tuple(area for area in areas if area is not None),
        can_offload=bytes_per_s is not None,
    )


def _held(timeline: Timeline, group: list[Holding]) -> Row:
    """Bytes that the group took in the pass that was measured."""
    kept, other = np.zeros(len(timeline.peaks)), np.zeros(len(timeline.peaks))
    for holding in group:
        live = timeline.stretches_of(holding)
        if holding.is_kept:
            # One view that is kept keeps the whole storage.
            kept[live] = holding.storage_bytes
        else:
            other[live] += holding.held_bytes
    return kept + other


def _choice(
    timeline: Timeline, group: list[Holding], growth: float, bytes_per_s: float | None
) -> Choice:
    plain, coded = np.zeros(len(timeline.peaks)), np.zeros(len(timeline.peaks))
    seconds = coded_bytes = 0.0
    is_kept = all(holding.is_kept for holding in group)
    for holding in group:
        live, site = timeline.stretches_of(holding), holding.site
        plain[live] = holding.storage_bytes * (1.0 if is_kept else growth)
        coded[live] += site.coded_bytes
        seconds += site.encode_s + site.decode_s
        coded_bytes += site.coded_bytes
    return Choice(
        sites=tuple(holding.site for holding in group),
        plain=plain,
        coded=coded,
        seconds=seconds,
        offload_s=len(group) * _VISIT_S + 2 * coded_bytes / bytes_per_s if bytes_per_s else 0.0,
    )


def _region(
    timeline: Timeline, name: str, seconds: float, growth: float, stretches: int
) -> Region | None:
    inside = [h for h in timeline.holdings if is_inside(h.site, name)]
    if not inside:
        return None
    held = np.zeros(stretches)
    first, last = min(h.first for h in inside), max(h.last or 0 for h in inside)
    # Its input is about as large as the largest of what it saves.
    held[first : last + 1] = max(h.site.coded_bytes for h in inside)
    begin = min((h.last for h in inside if h.last is not None), default=last)
    # Where the first of its tensors is read it runs again, and holds all of them as they are; by
    # and by they go, but what is worked on comes on top.
    held[begin : last + 2] += growth * sum(h.plain_bytes for h in inside)
    return Region(name=name, seconds=seconds, held=held)


def cost_s(problem: Problem, arrangement: Arrangement) -> float:
    """Seconds that an arrangement takes, as far as is known now."""
    regions = [r for r in problem.regions if r.name in arrangement.regions]
    total = sum(region.seconds for region in regions)
    for choice in problem.choices:
        form = arrangement.forms.get(choice.sites[0], Form.ENCODE)
        if form is Form.KEEP or any(is_inside(choice.sites[0], r.name) for r in regions):
            continue
        total += choice.seconds + (choice.offload_s if form is Form.OFFLOAD else 0.0)
    return total


def arrange(problem: Problem, limit_bytes: float) -> Arrangement | None:
    """The fastest arrangement whose peak is within the limit; None when there is none."""
    return _solve(problem, limit_bytes)


def lowest(problem: Problem) -> Arrangement:
    """The arrangement with the lowest peak."""
    found = _solve(problem, None)
    assert found is not None
    return found


def load_solver() -> Any:
    """Scipy's: some 40 MB, which had better be there before anything is measured."""
    from scipy import optimize

    return optimize


def _solve(problem: Problem, limit_bytes: float | None) -> Arrangement | None:
    tools = load_solver()
    forms = _forms(problem)
    count, areas = len(problem.choices), len(problem.regions)
    size = len(forms) * count + areas + 1  # the last: the peak
    scale = max(1.0, float(problem.rest.max(initial=1.0)))
    held = np.zeros((len(problem.rest), size))
    seconds, each = np.zeros(size), np.zeros((count, size))
    for i, choice in enumerate(problem.choices):
        for j, (_, bytes_of, seconds_of) in enumerate(forms):
            place = len(forms) * i + j
            held[:, place] = bytes_of(choice)
            seconds[place] = seconds_of(choice)
            each[i, place] = 1
    for k, region in enumerate(problem.regions):
        place = len(forms) * count + k
        held[:, place] = region.held
        seconds[place] = region.seconds
        for i, choice in enumerate(problem.choices):
            if is_inside(choice.sites[0], region.name):
                each[i, place] = 1
    held /= scale
    rest = problem.rest / scale
    stretches = _binding(held, rest)
    held, rest = held[stretches], rest[stretches]
    held[:, -1] = -1
    integral, upper = np.ones(size), np.ones(size)
    integral[-1] = 0
    upper[-1] = np.inf if limit_bytes is None else limit_bytes / scale
    if limit_bytes is None:
        seconds *= 1e-6 / max(1e-9, float(seconds.sum()))
        seconds[-1] = 1
    else:
        # Of what takes as long, that which holds less.
        seconds[-1] = 1e-6 * max(1e-9, float(seconds.sum()))
    constraints = [tools.LinearConstraint(held, -np.inf, -rest)]
    if count:
        constraints.append(tools.LinearConstraint(each, 1, 1))
    result = tools.milp(
        seconds,
        constraints=constraints,
        integrality=integral,
        bounds=tools.Bounds(np.zeros(size), upper),
        options={"mip_rel_gap": 0.01, "time_limit": 5},
    )
    if result.x is None:
        return None
    chosen = result.x > 0.5
    found: dict[Site, Form] = {}
    spent = 0.0
    for i, choice in enumerate(problem.choices):
        for j, (form, _, seconds_of) in enumerate(forms):
            if chosen[len(forms) * i + j]:
                spent += seconds_of(choice)
                if form is not Form.ENCODE:
                    found.update(dict.fromkeys(choice.sites, form))
    regions = [r for k, r in enumerate(problem.regions) if chosen[len(forms) * count + k]]
    return Arrangement(
        forms=found,
        regions=frozenset(region.name for region in regions),
        peak_bytes=round(scale * float((rest + held[:, :-1] @ chosen[:-1]).max(initial=0.0))),
        seconds=spent + sum(region.seconds for region in regions),
    )


def _forms(
    problem: Problem,
) -> list[tuple[Form, Callable[[Choice], Row], Callable[[Choice], float]]]:
    forms: list[tuple[Form, Callable[[Choice], Row], Callable[[Choice], float]]] = [
        (Form.KEEP, lambda c: c.plain, lambda c: 0.0),
        (Form.ENCODE, lambda c: c.coded, lambda c: c.seconds),
    ]
    if problem.can_offload:
        forms.append((Form.OFFLOAD, lambda c: 0 * c.coded, lambda c: c.seconds + c.offload_s))
    return forms


def _binding(held: Row, rest: Row) -> NDArray[np.intp]:
    """Of stretches in which the same is held, only the one with most around it counts."""
    order = np.lexsort((-rest,))
    _, first = np.unique(held[order], axis=0, return_index=True)
    return np.sort(order[first])


def is_inside(site: Site, name: str) -> bool:
    """Whether the site belongs to the module or one of its parts."""
    return site.key[0] == name or site.key[0].startswith(name + ".")
