"""Turns the bytes that came and went during a step into a few stacked curves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from elbowroom.report.model import Moment, Timeline

MOST_SERIES = 12
MOST_POINTS = 400
OTHERS = "others"

Kind = Literal["plain", "held"]


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Curves of one length that are drawn on top of each other."""

    at_s: tuple[float, ...]
    names: tuple[str, ...]
    bytes_of: tuple[tuple[int, ...], ...]
    """One curve a name."""

    peak_bytes: int
    peak_at: tuple[int, ...]
    """What each name holds at the peak."""


def group_layers(layers: Iterable[str]) -> dict[str, str]:
    """Find the longest beginnings of names that leave a dozen groups at most."""
    names = list(dict.fromkeys(layers))
    deepest = max((name.count(".") + 1 for name in names), default=1)
    for depth in range(deepest, 0, -1):
        groups = {name: ".".join(name.split(".")[:depth]) for name in names}
        if len(set(groups.values())) <= MOST_SERIES:
            return groups
    return {name: name.split(".")[0] for name in names}


def stack(timeline: Timeline, kind: Kind, groups: dict[str, str]) -> Stack:
    """Sum up what each group holds from moment to moment."""
    moments = sorted(timeline.moments, key=lambda moment: moment.at_s)
    names = _largest(moments, kind, groups)
    place = {name: number for number, name in enumerate(names)}
    held = [0] * len(names)
    at_s: list[float] = [0.0]
    curves: list[tuple[int, ...]] = [tuple(held)]
    for moment in moments:
        name = groups.get(moment.layer, moment.layer)
        held[place.get(name, len(names) - 1)] += _bytes_of(moment, kind)
        if moment.at_s > at_s[-1]:
            at_s.append(moment.at_s)
            curves.append(tuple(held))
        else:
            curves[-1] = tuple(held)
    peak = max(range(len(curves)), key=lambda number: sum(curves[number]))
    chosen = _thin(curves, peak)
    return Stack(
        at_s=tuple(at_s[number] for number in chosen),
        names=names,
        bytes_of=tuple(tuple(curves[n][i] for n in chosen) for i in range(len(names))),
        peak_bytes=sum(curves[peak]),
        peak_at=curves[peak],
    )


def _bytes_of(moment: Moment, kind: Kind) -> int:
    return moment.plain_bytes if kind == "plain" else moment.held_bytes


def _largest(moments: Sequence[Moment], kind: Kind, groups: dict[str, str]) -> tuple[str, ...]:
    """Groups in the order in which they first save; the smallest are thrown together."""
    sizes: dict[str, int] = {}
    for moment in moments:
        name = groups.get(moment.layer, moment.layer)
        sizes[name] = sizes.get(name, 0) + max(0, _bytes_of(moment, kind))
    if len(sizes) <= MOST_SERIES:
        return tuple(sizes) or (OTHERS,)
    large = sorted(sizes, key=lambda name: -sizes[name])[: MOST_SERIES - 1]
    return (*(name for name in sizes if name in large), OTHERS)


def _thin(curves: Sequence[tuple[int, ...]], peak: int) -> list[int]:
    """As many points as can be told apart on a screen, the peak among them."""
    if len(curves) <= MOST_POINTS:
        return list(range(len(curves)))
    last = len(curves) - 1
    even = {round(number * last / (MOST_POINTS - 2)) for number in range(MOST_POINTS - 1)}
    return sorted(even | {peak})
