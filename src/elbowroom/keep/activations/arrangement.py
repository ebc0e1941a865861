"""The fastest way to hold what a pass keeps below a given peak."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elbowroom.keep.activations.sites import Form, Site
from elbowroom.keep.activations.timeline import Holding, Timeline
from elbowroom.solve import Choice as Found
from elbowroom.solve import Group, Task, fastest
from elbowroom.solve import lowest as lowest_peak

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
    found = fastest(_task(problem), limit_bytes)
    return None if found is None else _arrangement(problem, found)


def lowest(problem: Problem) -> Arrangement:
    """The arrangement with the lowest peak."""
    return _arrangement(problem, lowest_peak(_task(problem)))


def _task(problem: Problem) -> Task:
    forms = _forms(problem)
    costs = np.array([[seconds(c) for _, _, seconds in forms] for c in problem.choices])
    loads = np.array([[held(c) for _, held, _ in forms] for c in problem.choices])
    count = len(problem.choices)
    costs, loads = costs.reshape(count, len(forms)), loads.reshape(count, len(forms), -1)
    if not count:
        loads = loads.reshape(0, len(forms), len(problem.rest))
    groups = [
        tuple(i for i, c in enumerate(problem.choices) if is_inside(c.sites[0], region.name))
        for region in problem.regions
    ]
    held = np.stack([r.held for r in problem.regions]) if problem.regions else np.zeros((0, 1))
    # In stretches with the same load only the one with most around it counts.
    columns = loads.reshape(-1, len(problem.rest))
    if len(problem.regions):
        columns = np.concatenate([columns, held])
    order = np.lexsort((-problem.rest,))
    _, first = np.unique(columns[:, order], axis=1, return_index=True)
    kept = np.sort(order[first]) if len(columns) else np.array([int(problem.rest.argmax())])
    return Task(
        rest=problem.rest[kept],
        costs=costs,
        loads=loads[:, :, kept],
        groups=tuple(
            Group(members=members, cost=region.seconds, load=region.held[kept])
            for members, region in zip(groups, problem.regions, strict=True)
        ),
    )


def _arrangement(problem: Problem, found: Found) -> Arrangement:
    names = [form for form, _, _ in _forms(problem)]
    forms: dict[Site, Form] = {}
    for choice, option in zip(problem.choices, found.options, strict=True):
        form = names[int(option)]
        if form is not Form.ENCODE:
            forms |= dict.fromkeys(choice.sites, form)
    return Arrangement(
        forms=forms,
        regions=frozenset(problem.regions[number].name for number in found.replaced),
        peak_bytes=round(found.peak),
        seconds=found.cost,
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


def is_inside(site: Site, name: str) -> bool:
    """Whether the site belongs to the module or one of its parts."""
    return site.key[0] == name or site.key[0].startswith(name + ".")
