"""Counting bytes and seconds while a pass lives."""

import functools
import time
import weakref
from typing import TYPE_CHECKING, NamedTuple

from elbowroom.keep.activations.ledger import Ledger, Reading, Row
from elbowroom.keep.activations.needs import class_of

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry, Use
    from elbowroom.keep.activations.timeline import Timeline


class Tally:
    """What one pass saved, holds and took; outlives the pass without holding a tensor."""

    def __init__(self, *, is_trial: bool = False, timeline: "Timeline | None" = None) -> None:
        """A trial, on a part of a batch, says nothing about its sites."""
        self._is_trial = is_trial
        self._timeline = timeline
        self.held_bytes = 0
        self.peak_bytes = 0
        self.encode_s = 0.0
        self.decode_s = 0.0
        self.saved_bytes = 0
        self.kept_bytes = 0
        self.gradient_error = 0.0
        self.is_rounded = False
        """Whether something is not held to the last bit."""

        self._noted: list[Row | _Note] = []
        self._rows: tuple[Row, ...] | None = None
        self._compiled_bytes = 0
        self._restored_s: dict[int, float] = {}
        self._entries: list[weakref.ref[Entry]] = []
        self.moments: list[tuple[float, str, int, int]] = []
        """When and where bytes came or went: those of a plain tensor, and those held for it."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """One a tensor, with what making it again has taken so far."""
        if self._rows is None:
            spent = self._restored_s
            self._rows = tuple(
                note if isinstance(note, Row) else note.to_row(spent.get(place, 0.0))
                for place, note in enumerate(self._noted)
            )
        return self._rows

    @property
    def ratio(self) -> float:
        """Bytes saved for each that is held."""
        return self.saved_bytes / max(1, self.kept_bytes)

    def to_ledger(self, step: int, readings: list[Reading], events: list[str]) -> Ledger:
        """For people: this pass, what the meter has read so far, and what has happened."""
        return Ledger(
            step=step,
            saved_bytes=self.saved_bytes,
            kept_bytes=self.kept_bytes,
            peak_bytes=self.peak_bytes,
            gradient_error=self.gradient_error,
            encode_s=self.encode_s,
            decode_s=self.decode_s,
            rows=self.rows,
            readings=tuple(readings),
            events=tuple(events),
        )

    def so_far(self) -> tuple[int, int]:
        """Bytes saved plainly, and those held without a bound, also before the forward is over."""
        saved_bytes = self.saved_bytes
        other_bytes = sum(note.kept_bytes for note in self._noted if note.bound == 0)
        for reference in self._entries:
            entry = reference()
            if entry is not None and entry.payload is not None and entry.on_release is not None:
                saved_bytes += entry.nbytes_plain
                other_bytes += 0 if entry.bound > 0 else entry.payload.nbytes
        return saved_bytes, other_bytes

    def add(self, entry: "Entry") -> None:
        """A tensor is saved for the first time."""
        self._entries.append(weakref.ref(entry))

    def settle(self, entry: "Entry") -> None:
        """It has found its form."""
        assert entry.payload is not None
        if entry.on_release is not None:
            return
        self.held_bytes += entry.payload.nbytes
        self.encode_s += entry.encode_s
        # While it is encoded the tensor itself is there too.
        self.peak_bytes = max(self.peak_bytes, self.held_bytes + entry.nbytes_plain)
        self._note(entry.site.name, entry.nbytes_plain, entry.payload.nbytes)
        entry.on_release = functools.partial(
            self._release, entry.site.name, entry.nbytes_plain, id(entry)
        )
        site = entry.site
        if self._is_trial:
            return
        if entry.payload.method == "encode":
            site.plain_bytes, site.coded_bytes = entry.nbytes_plain, entry.payload.nbytes
            site.encode_s = entry.encode_s
        elif entry.payload.method in ("keep", "offload"):
            site.expect(entry.nbytes_plain)
        if self._timeline is not None:
            self._timeline.hold(entry)

    def hold(self, row: Row) -> None:
        """A tensor is encoded by a compiled graph, which lets go of it by itself."""
        self._write(row)
        self.encode_s += row.encode_s
        self._compiled_bytes += row.kept_bytes
        held_bytes = self.held_bytes + self._compiled_bytes
        self.peak_bytes = max(self.peak_bytes, held_bytes + row.saved_bytes)

    def _release(self, name: str, nbytes_plain: int, entry_id: int, nbytes: int) -> None:
        self.held_bytes -= nbytes
        if self._timeline is not None:
            self._timeline.release(entry_id)
        self._note(name, -nbytes_plain, -nbytes)

    def _note(self, name: str, plain_bytes: int, held_bytes: int) -> None:
        self.moments.append((time.perf_counter(), name, plain_bytes, held_bytes))

    def read(self, entry: "Entry") -> None:
        """Backward wants it."""
        if self._timeline is not None:
            self._timeline.read(entry)

    def restore(self, entry: "Entry", seconds: float) -> None:
        """It was made again for backward."""
        self.decode_s += seconds
        if entry.row >= 0:
            self._restored_s[entry.row] = self._restored_s.get(entry.row, 0.0) + seconds
            self._rows = None
        if entry.payload is not None and entry.payload.method == "encode" and not self._is_trial:
            entry.site.decode_s = seconds
        self.peak_bytes = max(self.peak_bytes, self.held_bytes + entry.nbytes_plain)

    def close(self) -> None:
        """The forward is over: note what is held of each tensor."""
        for reference in self._entries:
            entry = reference()
            if entry is None or entry.payload is None:
                continue
            payload = entry.payload
            if payload.method == "keep":
                if payload.nbytes == 0:
                    continue
                self.settle(entry)
            entry.row = len(self._noted)
            self._write(
                _Note(
                    name=entry.site.name,
                    uses=tuple(entry.uses),
                    method=payload.method,
                    shape=entry.shape,
                    saved_bytes=entry.nbytes_plain,
                    kept_bytes=payload.nbytes,
                    bound=entry.bound,
                    gradient_error=entry.site.share if entry.bound > 0 else 0.0,
                    encode_s=entry.encode_s,
                )
            )
        self._entries = []

    def _write(self, note: "Row | _Note") -> None:
        self.saved_bytes += note.saved_bytes
        self.kept_bytes += note.kept_bytes
        self.gradient_error += note.gradient_error
        self.is_rounded |= note.bound > 0
        self._noted.append(note)
        self._rows = None


class _Note(NamedTuple):
    """A row before anybody asks for it: making rows of a pass takes as long as some layers."""

    name: str
    uses: "tuple[Use, ...]"
    method: str
    shape: tuple[int, ...]
    saved_bytes: int
    kept_bytes: int
    bound: float
    gradient_error: float
    encode_s: float

    def to_row(self, decode_s: float) -> Row:
        """With what only people want to know."""
        return Row(
            name=self.name,
            readers=tuple(dict.fromkeys(f"{use.kind}.{use.slot}" for use in self.uses)),
            error_class=class_of(self.uses),
            method=self.method,
            shape=self.shape,
            saved_bytes=self.saved_bytes,
            kept_bytes=self.kept_bytes,
            bound=self.bound,
            gradient_error=self.gradient_error,
            encode_s=self.encode_s,
            decode_s=decode_s,
        )
