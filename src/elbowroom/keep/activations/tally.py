"""Counting bytes and seconds while a pass lives."""

import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from elbowroom.keep.activations.ledger import Ledger, Reading, Row
from elbowroom.keep.activations.needs import class_of
from elbowroom.keep.activations.payloads import Raw
from elbowroom.keep.activations.reasons import UNREAD
from elbowroom.keep.activations.sites import Site
from elbowroom.keep.activations.storages import SavedStorage, Storages, weight_of

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry, Use
    from elbowroom.keep.activations.pace import Pace
    from elbowroom.keep.activations.timeline import Timeline


class Tally:
    """What one pass saved, holds and took; outlives the pass without holding a tensor."""

    def __init__(
        self,
        *,
        is_trial: bool = False,
        timeline: "Timeline | None" = None,
        plain_bytes: int | None = None,
    ) -> None:
        """Of a pass that begins.

        Args:
            is_trial: On a part of a batch, it says nothing about its sites.
            timeline: Told of what is held, and of what is read.
            plain_bytes: Of a pass that is left alone: what plain autograd holds, as far as known.
        """
        self.is_trial = is_trial
        self._timeline = timeline
        self.storages = Storages()
        self.is_aside = False
        """Whether a function of our own runs, and plain autograd saves other tensors there."""

        self.held_bytes = 0
        self.peak_bytes = plain_bytes or 0
        self.encode_s = 0.0
        self.decode_s = 0.0
        self._noted: list[Row | _Note] = []
        self._rows: tuple[Row, ...] | None = None
        self._totals = None if plain_bytes is None else (plain_bytes, plain_bytes)
        self._compiled_bytes = self._left_bytes = 0
        self._restored_s: dict[int, float] = {}
        self._entries: list[weakref.ref[Entry]] = []
        # As plain tuples, which take a fraction of the time to make.
        self._events: list[tuple[Any, ...]] = []

    # What is asked of it.

    @property
    def saved_bytes(self) -> int:
        """What plain autograd would hold."""
        return self._sum()[0]

    @property
    def kept_bytes(self) -> int:
        """What is held instead."""
        return self._sum()[1]

    @property
    def gradient_error(self) -> float:
        """Predicted share of the gradient's variance."""
        return sum(note.gradient_error for note in self._notes())

    @property
    def is_rounded(self) -> bool:
        """Whether something is not held to the last bit."""
        return any(note.bound > 0 for note in self._notes())

    @property
    def ratio(self) -> float:
        """Bytes saved for each that is held."""
        return self.saved_bytes / max(1, self.kept_bytes)

    @property
    def rows(self) -> tuple[Row, ...]:
        """One a tensor, with what making it again has taken so far."""
        if self._rows is None:
            self._rows = _rows_of(self._noted, self._restored_s)
        return self._rows

    @property
    def moments(self) -> list[tuple[float, str, int, int]]:
        """When and where bytes came or went: those of a plain tensor, and those held for it."""
        events = (_Event(*event) for event in self._events)
        return [m for m in (event.to_moment() for event in events) if m[2] or m[3]]

    def to_ledger(
        self, step: int, readings: list[Reading], events: list[str], pace: "Pace"
    ) -> Ledger:
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
            overhead=pace.overhead,
            slowdown=pace.measured,
        )

    def so_far(self) -> tuple[int, int]:
        """Bytes saved plainly, and those held without a bound, also before the forward is over.

        What is left as it is for lack of time is in neither.
        """
        encoded = sum(note.kept_bytes for note in self._notes() if note.bound > 0)
        saved_bytes, kept_bytes = self._sum()
        return saved_bytes - self._left_bytes, kept_bytes - encoded - self._left_bytes

    def _sum(self) -> tuple[int, int]:
        if self._totals is not None:
            return self._totals
        storages, notes = self.storages.all, self._notes()
        saved_bytes = sum(s.saved_bytes for s in storages) + sum(n.saved_bytes for n in notes)
        return saved_bytes, sum(s.kept_bytes for s in storages) + sum(n.kept_bytes for n in notes)

    def _notes(self) -> "list[Row | _Note]":
        """Of all entries that have found their form."""
        found = (reference() for reference in self._entries)
        return [*self._noted, *(_Note.of(e) for e in found if e is not None and e.is_counted)]

    # What it is told.

    def add(self, entry: "Entry") -> None:
        """A tensor is saved for the first time."""
        self._entries.append(weakref.ref(entry))
        storage = entry.saved_in = self.storages.enter(entry)
        entry.on_release = self._release
        self.again(entry)
        if storage.entries == 1:
            self._note(entry, 1, plain=storage)

    def again(self, entry: "Entry") -> None:
        """A tensor is saved, for the first time or once more."""
        if entry.saved_in is not None and not self.is_aside:
            entry.saved_in.is_plain = True

    def stand_for(self, entries: "list[Entry]", made_bytes: int, inputs: set[int]) -> None:
        """In place of the function that has saved these plain PyTorch's saves others.

        Args:
            entries: Saved by our function.
            made_bytes: Of what plain PyTorch's makes itself.
            inputs: Storages of those of its inputs that it saves as they are.
        """
        if not entries:
            return
        largest = max(entries, key=lambda entry: entry.nbytes_plain)
        largest.instead_bytes += made_bytes
        self._note(largest, 1, plain_bytes=made_bytes)
        for entry in entries:
            if entry.saved_in is not None and entry.storage is not None:
                entry.saved_in.is_plain |= entry.storage.cdata in inputs

    def settle(self, entry: "Entry") -> None:
        """It has found its form."""
        payload, storage = entry.payload, entry.saved_in
        if payload is None or storage is None or entry.is_counted:
            return
        entry.is_counted = True
        raw = None
        if isinstance(payload, Raw):
            raw = storage if storage.raws == 0 else None
            self.storages.hold(entry, storage)
            if payload.owned and not storage.is_held:
                storage.is_held = True
                self.held_bytes += storage.nbytes
        else:
            self.held_bytes += payload.nbytes
            self.encode_s += entry.encode_s
        # While it is encoded the tensor itself is there too.
        self.peak_bytes = max(self.peak_bytes, self.held_bytes + entry.nbytes_plain)
        self._note(entry, 1, raw=raw, held_bytes=_held_bytes(entry))
        site = entry.site
        if self.is_trial:
            return
        if payload.method == "encode":
            site.plain_bytes, site.coded_bytes = entry.nbytes_plain, payload.nbytes
            site.encode_s = entry.encode_s
        elif payload.method == "offload" or (isinstance(payload, Raw) and payload.owned):
            site.expect(entry.nbytes_plain)
        if self._timeline is not None and not entry.is_left_alone:
            self._timeline.hold(entry)

    def unsettle(self, entry: "Entry") -> None:
        """It is about to have another form."""
        storage = entry.saved_in
        if storage is None or not entry.is_counted:
            return
        entry.is_counted = False
        raw = None
        if isinstance(entry.payload, Raw):
            self.storages.let_go(entry, storage)
            if storage.raws == 0:
                raw = storage
                self.held_bytes -= storage.nbytes if storage.is_held else 0
                storage.is_held = False
        elif entry.payload is not None:
            self.held_bytes -= entry.payload.nbytes
        self._note(entry, -1, raw=raw, held_bytes=-_held_bytes(entry))
        if self._timeline is not None:
            self._timeline.release(id(entry))

    def hold(self, row: Row) -> None:
        """A tensor is encoded by a compiled graph, which lets go of it by itself."""
        self._noted.append(row)
        self._rows = None
        self.encode_s += row.encode_s
        self._compiled_bytes += row.kept_bytes
        held_bytes = self.held_bytes + self._compiled_bytes
        self.peak_bytes = max(self.peak_bytes, held_bytes + row.saved_bytes)

    def _release(self, entry: "Entry") -> None:
        """Its graph is gone, or backward has been through it."""
        storage = entry.saved_in
        if storage is None:
            return
        if entry.payload is None and entry.raw is not None:
            entry.keep_as_it_is(owned=True, reason=UNREAD)
            self.settle(entry)
        if self._totals is None:
            # Backward within the pass: it leaves a row.
            if storage.entries == 1:
                self.storages.look(storage)
            self._write(entry)
        self.unsettle(entry)
        storage.entries -= 1
        gone = storage if storage.entries == 0 else None
        self._note(entry, -1, plain=gone, plain_bytes=-entry.instead_bytes)
        entry.saved_in = None

    def _note(
        self,
        entry: "Entry",
        sign: int,
        *,
        plain: SavedStorage | None = None,
        raw: SavedStorage | None = None,
        plain_bytes: int = 0,
        held_bytes: int = 0,
    ) -> None:
        if plain is not None or raw is not None or plain_bytes or held_bytes:
            now = time.perf_counter()
            self._events.append((now, entry.site, sign, plain, raw, plain_bytes, held_bytes))

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
        else:
            entry.decode_s += seconds
        if entry.payload is not None and entry.payload.method == "encode" and not self.is_trial:
            entry.site.decode_s = seconds
        self.peak_bytes = max(self.peak_bytes, self.held_bytes + entry.nbytes_plain)

    def close(self) -> None:
        """The forward is over: note what is held of each tensor."""
        alive = [e for e in (reference() for reference in self._entries) if e is not None]
        self._entries = []
        for entry in alive:
            self.settle(entry)
            is_ours = isinstance(entry.payload, Raw) and entry.payload.owned
            if self._timeline is not None and entry.is_left_alone and is_ours:
                self._timeline.hold(entry)
        self.storages.close()
        for storage in self.storages.all:
            if storage.raws and storage.is_held == storage.is_users:
                # Somebody else holds it after all, or nobody does.
                storage.is_held = not storage.is_users
                moved = storage.nbytes if storage.is_held else -storage.nbytes
                self.held_bytes += moved
                self.peak_bytes += moved
        for entry in alive:
            if entry.is_counted:
                entry.row = len(self._noted)
                self._write(entry)
        self._totals = self._sum()
        left = [e.saved_in for e in alive if e.held is not None and e.held.is_left]
        self._left_bytes = sum(storage.kept_bytes for storage in set(left) if storage is not None)

    def _write(self, entry: "Entry") -> None:
        self._noted.append(_Note.of(entry))
        self._rows = None


def _held_bytes(entry: "Entry") -> int:
    """Of the entry alone: a tensor that is kept as it is has its storage's."""
    payload = entry.payload
    return 0 if payload is None or isinstance(payload, Raw) else payload.nbytes


class _Event(NamedTuple):
    """Bytes come or go."""

    at_s: float
    site: Site
    sign: int
    plain: SavedStorage | None
    """Which plain autograd begins or ceases to hold."""

    raw: SavedStorage | None
    """Which is held as it is, from now on or no more."""

    plain_bytes: int
    held_bytes: int

    def to_moment(self) -> tuple[float, str, int, int]:
        """With bytes as they turned out to be the user's or not."""
        plain_bytes = 0 if self.plain is None else self.sign * self.plain.saved_bytes
        held_bytes = 0 if self.raw is None else self.sign * self.raw.kept_bytes
        return (
            self.at_s,
            self.site.name,
            plain_bytes + self.plain_bytes,
            held_bytes + self.held_bytes,
        )


class _Note(NamedTuple):
    """A row before anybody asks for it: making rows of a pass takes as long as some layers."""

    name: str
    uses: "tuple[Use, ...]"
    method: str
    shape: tuple[int, ...]
    storage: SavedStorage
    weight: int
    saved_bytes: int
    """Beside its share of the storage."""

    kept_bytes: int
    bound: float
    gradient_error: float
    encode_s: float
    decode_s: float
    reason: str

    @classmethod
    def of(cls, entry: "Entry") -> "_Note":
        """Of one that has found its form."""
        assert entry.payload is not None and entry.saved_in is not None
        return cls(
            name=entry.site.name,
            uses=tuple(entry.uses),
            method=entry.payload.method,
            shape=entry.shape,
            storage=entry.saved_in,
            weight=weight_of(entry),
            saved_bytes=entry.instead_bytes,
            kept_bytes=_held_bytes(entry),
            bound=entry.bound,
            gradient_error=entry.site.share if entry.bound > 0 else 0.0,
            encode_s=entry.encode_s,
            decode_s=entry.decode_s,
            reason=entry.reason,
        )

    def to_row(self, saved_bytes: int, kept_bytes: int, decode_s: float) -> Row:
        """With what only people want to know."""
        return Row(
            name=self.name,
            readers=tuple(dict.fromkeys(f"{use.kind}.{use.slot}" for use in self.uses)),
            error_class=class_of(self.uses),
            method=self.method,
            shape=self.shape,
            saved_bytes=saved_bytes,
            kept_bytes=kept_bytes,
            bound=self.bound,
            gradient_error=self.gradient_error,
            encode_s=self.encode_s,
            decode_s=decode_s,
            reason=self.reason,
        )


def _rows_of(notes: "list[Row | _Note]", restored_s: dict[int, float]) -> tuple[Row, ...]:
    """Views share the bytes of their storage; what the user holds anyway has no row."""
    rows: list[Row] = []
    dealt: dict[tuple[int, bool], int] = {}

    def deal(note: _Note, nbytes: int, of: int, *, is_raw: bool) -> int:
        key = (id(note.storage), is_raw)
        before = dealt.get(key, 0)
        dealt[key] = before + note.weight
        return nbytes * dealt[key] // max(1, of) - nbytes * before // max(1, of)

    for place, note in enumerate(notes):
        if isinstance(note, Row):
            rows.append(note)
            continue
        storage, is_raw = note.storage, note.method == "keep"
        saved = note.saved_bytes
        saved += deal(note, storage.saved_bytes, storage.weight, is_raw=False)
        kept = note.kept_bytes
        if is_raw:
            kept += deal(note, storage.kept_bytes, storage.raw_weight, is_raw=True)
        if saved or kept or not is_raw:
            spent = note.decode_s + restored_s.get(place, 0.0)
            rows.append(note.to_row(saved, kept, spent))
    return tuple(rows)
