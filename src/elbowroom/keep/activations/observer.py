"""Reading gradients as they pass by: what the errors of each site do to them."""

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from elbowroom.keep.activations.derive import Derived
from elbowroom.keep.activations.entries import Entry, Record, Use
from elbowroom.keep.activations.needs import Need, need_of
from elbowroom.keep.activations.noise import Noise
from elbowroom.keep.activations.payloads import Aliased, Coded
from elbowroom.keep.activations.sensitivity import (
    Effect,
    Passage,
    effect_of,
    energy,
    path_factor,
)
from elbowroom.keep.activations.sites import Site

_log = logging.getLogger("elbowroom")


@dataclass(frozen=True, slots=True)
class Costs:
    """Shares of the sampling variance that a unit of squared bound adds."""

    overall: float
    """Of the whole gradient."""

    mean: float
    """Of each layer, averaged over layers."""


class Observer:
    """Collects the effects of one pass."""

    def __init__(self, finished: Callable[["Observer"], None]) -> None:
        self.records: dict[int, Record] = {}
        self._finished = finished
        self._queued = False
        self._failed = False
        self.energies: dict[int, float] = {}
        self.effects: dict[Site, Effect] = {}
        self.counts: dict[Site, int] = {}
        self.bounds: dict[Site, float] = {}

    def listen(self, node: Any, record: Record) -> None:
        """Have the node tell its gradients when backward comes by."""
        self.records[record.number] = record
        node.register_hook(partial(self._pass_by, record))

    def _pass_by(self, record: Record, inputs: Any, outputs: Any) -> None:
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        try:
            with torch.no_grad():
                self._read(record, inputs, outputs)
        except Exception as error:
            # An estimate must not cost the user's backward: bounds stay as they are.
            if not self._failed:
                _log.warning(f"bounds are not refreshed, {record.kind} was not understood: {error}")
            self._failed = True

    def _read(self, record: Record, inputs: Any, outputs: Any) -> None:
        arrived = sum(energy(g) for g in outputs)
        self.energies[record.number] = self.energies.get(record.number, 0.0) + arrived
        if not 0 < arrived < math.inf:
            return
        passage = Passage(record, outputs, inputs)
        for slot in record.slots:
            entry = record.entry(slot)
            if entry is not None and need_of(record.kind, slot) is Need.VALUES:
                self._charge(passage, slot, entry)

    def _charge(self, passage: Passage, slot: str, entry: Entry) -> None:
        payload = entry.payload
        factor = 1.0
        source = entry
        if isinstance(payload, Aliased):
            source = payload.source
        elif isinstance(payload, Derived):
            source = payload.derivation.source
            use = Use(passage.record.number, passage.record.kind, slot, payload.derivation.path)
            factor = path_factor(use, source, self.records)
        if not isinstance(source.payload, Coded) or source.bound == 0:
            return
        effect = self.effects.setdefault(source.site, Effect())
        effect.add(effect_of(passage, slot, entry), factor)
        self.counts[source.site] = source.payload.blob.item_count
        self.bounds[source.site] = source.bound

    def _end(self) -> None:
        self._queued = False
        if not self._failed:
            self._finished(self)


class Variances:
    """Sampling variance of the parameters beyond each node."""

    def __init__(
        self, records: dict[int, Record], parameters: Iterable[nn.Parameter], noise: Noise
    ) -> None:
        self.by_leaf: dict[int, float] = {}
        self.layers: set[int] = set()
        for parameter in parameters:
            variance = noise.variance(parameter)
            if variance is not None and variance > 0:
                self.by_leaf[id(parameter)] = variance
                if parameter.dim() > 1:
                    self.layers.add(id(parameter))
        self.total = sum(self.by_leaf.values())
        order = {leaf: place for place, leaf in enumerate(self.by_leaf)}
        leaves = list(self.by_leaf)
        masks: dict[int, int] = {}
        for number in sorted(records):
            mask = 0
            for following, leaf in records[number].following:
                mask |= masks.get(following, 0)
                if leaf in order:
                    mask |= 1 << order[leaf]
            masks[number] = mask
        values: dict[int, tuple[float, int]] = {0: (0.0, 0)}
        self._beyond: dict[int, tuple[float, int]] = {}
        for number, mask in masks.items():
            if mask not in values:
                members = [leaf for place, leaf in enumerate(leaves) if mask >> place & 1]
                values[mask] = (
                    sum(self.by_leaf[leaf] for leaf in members),
                    sum(leaf in self.layers for leaf in members),
                )
            self._beyond[number] = values[mask]

    def costs(self, effect: Effect, energies: dict[int, float]) -> Costs:
        """Of a unit of error variance."""
        overall = mean = 0.0
        for leaf, value in effect.local.items():
            overall += value
            if leaf in self.layers:
                mean += value / self.by_leaf[leaf]
        for number, value in effect.injected.items():
            arrived = energies.get(number, 0.0)
            if arrived > 0:
                beyond, layers = self._beyond.get(number, (0.0, 0))
                overall += value / arrived * beyond
                mean += value / arrived * layers
        return Costs(overall / self.total, mean / max(1, len(self.layers)))
