"""Which tensors take which form: the fewest bytes that given seconds can buy."""

from collections.abc import Sequence
from dataclasses import dataclass

from elbowroom.keep.activations.sites import Form, Site


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One way to hold some tensors: they are held together or not at all."""

    forms: tuple[tuple[Site, Form], ...]
    seconds: float
    """For making it in forward, and undoing it in backward."""

    held_bytes: float


Options = Sequence[Option]
"""All ways to hold the same tensors; one of them takes no time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Swap:
    """One option in place of another one that takes less time."""

    group: int
    place: int
    seconds: float
    gain_bytes: float

    @property
    def worth(self) -> float:
        """Bytes for a second."""
        return self.gain_bytes / self.seconds if self.seconds > 0 else float("inf")


def choose(groups: Sequence[Options], seconds: float) -> list[Option]:
    """One option of each group, within the seconds and with about the fewest bytes.

    Options that others beat in both are left out. The rest are swapped in where a second buys most,
    until no swap fits any more.
    """
    hulls = [_hull(options) for options in groups]
    chosen = [0] * len(hulls)
    swaps = [
        _Swap(
            group=group,
            place=place,
            seconds=option.seconds - hull[place - 1].seconds,
            gain_bytes=hull[place - 1].held_bytes - option.held_bytes,
        )
        for group, hull in enumerate(hulls)
        for place, option in enumerate(hull)
        if place > 0
    ]
    left = seconds - sum(hull[0].seconds for hull in hulls)
    for swap in sorted(swaps, key=lambda swap: -swap.worth):
        if chosen[swap.group] == swap.place - 1 and swap.seconds <= left:
            chosen[swap.group] = swap.place
            left -= swap.seconds
    return [hull[place] for hull, place in zip(hulls, chosen, strict=True)]


def _hull(options: Options) -> list[Option]:
    """Fastest first; of each next one a second buys less than of the one before."""
    found: list[Option] = []
    for option in sorted(options, key=lambda option: (option.seconds, option.held_bytes)):
        if found and option.held_bytes >= found[-1].held_bytes:
            continue
        while len(found) > 1 and _is_above(found[-1], found[-2], option):
            found.pop()
        found.append(option)
    return found


def _is_above(middle: Option, first: Option, last: Option) -> bool:
    """Whether the way from the first to the last passes below the one between."""
    early = (first.held_bytes - middle.held_bytes) * (last.seconds - first.seconds)
    whole = (first.held_bytes - last.held_bytes) * (middle.seconds - first.seconds)
    return early <= whole
