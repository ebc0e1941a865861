"""The course of memory through one pass: what was held when, and the peak of each stretch."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elbowroom.keep.activations.gauge import Gauge
from elbowroom.keep.activations.sites import Site

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry

_MOVABLE = frozenset({"keep", "encode", "offload"})


@dataclass(slots=True, eq=False)
class Holding:
    """A tensor that waits for backward, and the stretches in which it does."""

    site: Site
    storage: int
    """Views of one storage share a number."""

    storage_bytes: int
    plain_bytes: int
    held_bytes: int
    first: int
    last: int | None = None
    """The last stretch before backward has read it for the last time."""

    is_movable: bool = True
    """Whether it can take another form: masks and what is derived cannot."""

    is_kept: bool = False
    """As it was: with the whole storage of which it may be a part."""


@dataclass(slots=True)
class Timeline:
    """Stretches lie between two events: a tensor comes, is read or goes."""

    gauge: Gauge
    peaks: list[int] = field(default_factory=list[int])
    holdings: list[Holding] = field(default_factory=list[Holding])
    _open: dict[int, Holding] = field(default_factory=dict[int, Holding])

    def hold(self, entry: "Entry") -> None:
        """An entry has found its form."""
        assert entry.payload is not None
        self.lap()
        holding = Holding(
            site=entry.site,
            storage=entry.storage.cdata if entry.storage is not None else id(entry),
            storage_bytes=max(entry.storage_bytes, entry.nbytes_plain),
            plain_bytes=entry.nbytes_plain,
            held_bytes=entry.payload.nbytes,
            first=len(self.peaks),
            is_movable=entry.payload.method in _MOVABLE,
            is_kept=entry.payload.method == "keep",
        )
        self.holdings.append(holding)
        self._open[id(entry)] = holding

    def read(self, entry: "Entry") -> None:
        """Backward is about to have it."""
        self.lap()
        holding = self._open.get(id(entry))
        if holding is not None:
            holding.last = len(self.peaks) - 1

    def release(self, entry_id: int) -> None:
        """It is gone."""
        self.lap()
        holding = self._open.pop(entry_id, None)
        if holding is not None and holding.last is None:
            holding.last = len(self.peaks) - 1

    def lap(self) -> None:
        """A stretch ends."""
        self.peaks.append(self.gauge.peak())
        self.gauge.reset()

    def stretches_of(self, holding: Holding) -> slice:
        """Those through which it waits."""
        last = len(self.peaks) - 1 if holding.last is None else holding.last
        return slice(holding.first, last + 1)

    @property
    def peak_bytes(self) -> int:
        """Of the whole pass."""
        return max(self.peaks, default=0)
