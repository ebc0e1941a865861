"""Reading gradients as they pass by: what the errors of each site do to them."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from elbowroom.keep.activations.clock import now_s
from elbowroom.keep.activations.derive import Derived
from elbowroom.keep.activations.entries import Entry, Record
from elbowroom.keep.activations.growth import note_error
from elbowroom.keep.activations.journey import Channels, Journey, Passage
from elbowroom.keep.activations.needs import Need, largest_bound, need_of
from elbowroom.keep.activations.payloads import Coded, Offloaded
from elbowroom.keep.activations.portions import Portions
from elbowroom.keep.activations.sensitivity import (
    Effect,
    drift_of,
    effect_of,
    limit_of,
)
from elbowroom.keep.activations.sites import Site
from elbowroom.keep.activations.transfer import channels_of, reads_values, transfer_of

_log = logging.getLogger("elbowroom")

# Nodes whose saved values tell how noise travels, and that may write over them.
_BEFORE = frozenset({"Convolution"})


class Observer:
    """Collects the effects of one pass."""

    def __init__(
        self,
        finished: Callable[["Observer"], None],
        parameters: Iterable[nn.Parameter] = (),
        *,
        is_certified: bool = False,
    ) -> None:
        self.records: dict[int, Record] = {}
        self._finished, self._is_certified = finished, is_certified
        self.portions = Portions(parameters)
        self._task = -1
        self._failed = False
        self.journeys: dict[int, Journey] = {}
        self.effects: dict[Site, Effect] = {}
        self.counts: dict[Site, int] = {}
        self.largest: dict[Site, float] = {}
        self._channels: dict[int, Channels] = {}
        self._held: dict[int, list[Tensor]] = {}
        self.totals: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Of the pass: bytes saved plainly, and those held without a bound."""

        self.note_s: Callable[[float], None] = lambda seconds: None
        """Told of the time that looking takes."""

    def cancel(self) -> None:
        """The rest of the forward is not seen: what is seen of it tells nothing."""
        self._failed = True

    def listen(self, node: Any, record: Record) -> None:
        """Have the node tell its gradients when backward comes by."""
        self.records[record.number] = record
        if any(need_of(record.kind, slot) is Need.VALUES for slot in record.slots):
            node.register_prehook(partial(self._come_to, record))
        node.register_hook(partial(self._pass_by, record))

    def _come_to(self, record: Record, outputs: Any) -> None:
        """Before the node runs: what it has saved may be written over by what it hands on."""
        if self._failed:
            return
        with self._estimate(record):
            passage = Passage(record, outputs, ())
            if all(g is None for g in outputs):
                return
            if reads_values(record.kind):
                # Decoded once, for the node and for us.
                self._held[record.number] = _decoded(record)
            if record.kind in _BEFORE:
                self.portions.note(passage)
                channels = self._channels.pop(record.number, None)
                self.journeys[record.number] = transfer_of(replace(passage, channels=channels))
            channels = channels_of(passage)
            if channels is not None:
                self._channels[record.following[0][0]] = channels

    def _pass_by(self, record: Record, inputs: Any, outputs: Any) -> None:
        if self._failed:
            return
        task = torch._C._current_graph_task_id()
        if task != self._task:
            # Of a backward that is interrupted no end is told: each has its own.
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        with self._estimate(record):
            self._read(record, inputs, outputs)
        self._held.pop(record.number, None)

    @contextmanager
    def _estimate(self, record: Record) -> Iterator[None]:
        """An estimate must not cost the user's backward: bounds stay as they are."""
        start = now_s()
        try:
            with torch.no_grad():
                yield
        except Exception as error:
            if not self._failed:
                _log.warning(f"bounds are not refreshed, {record.kind} was not understood: {error}")
            self._failed = True
        finally:
            self.note_s(now_s() - start)

    def _read(self, record: Record, inputs: Any, outputs: Any) -> None:
        if all(g is None for g in outputs):
            return
        channels = self._channels.pop(record.number, None)
        passage = Passage(record, outputs, inputs, channels, self._is_certified)
        if record.kind not in _BEFORE:
            self.portions.note(passage)
        if record.kind not in _BEFORE or record.number not in self.journeys:
            self.journeys[record.number] = transfer_of(passage)
        for slot in record.slots:
            entry = record.entry(slot)
            if entry is not None and need_of(record.kind, slot) is Need.VALUES:
                self._charge(passage, slot, entry)

    def _charge(self, passage: Passage, slot: str, entry: Entry) -> None:
        # What it derives from may derive from something else, or share its memory.
        sources = [
            (source, factor)
            for source, factor in note_error(entry, self.records)
            if isinstance(source.payload, Coded | Offloaded) or source.is_open
        ]
        if not sources:
            return
        found = effect_of(passage, slot, entry)
        drift = None
        if isinstance(entry.payload, Derived) and len(sources) == 1:
            drift = drift_of(passage, slot, entry.payload.derivation)
        for source, factor in sources:
            effect = self.effects.setdefault(source.site, Effect())
            effect.add(found, factor)
            if drift is not None:
                effect.add(drift, 1.0)
            self.counts[source.site] = math.prod(source.shape)
            limit = min(largest_bound(source.uses), limit_of(passage, slot))
            self.largest[source.site] = min(limit, self.largest.get(source.site, math.inf))

    def _end(self) -> None:
        self._channels.clear()
        self._held.clear()
        if not self._failed:
            self._finished(self)


def _decoded(record: Record) -> list[Tensor]:
    """What the node will want, alive until it has had it."""
    found: list[Tensor] = []
    for slot in record.slots:
        entry = record.entry(slot)
        if entry is None or not entry.has_values or need_of(record.kind, slot) is not Need.VALUES:
            continue
        if isinstance(entry.payload, Derived):
            found.append(entry.payload.derivation.source.values())
        found.append(entry.values())
    return found
