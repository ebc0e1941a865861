"""The order that samples come in: watched as it is drawn, and taken up again where it was left."""

import copy
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler, Sampler

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint.sources import Stateful, read_randomness, set_randomness


@dataclass(kw_only=True)
class Epoch:
    """How far an epoch has come, in units: samples, or batches where only these can be counted.

    The sampler may be further than the user is, since workers are given indices ahead of time.
    """

    start: list[dict[str, Any]] = field(default_factory=list)  # what the order was drawn from
    taken: int = 0  # units that had been delivered when the epoch was taken up
    taken_drawn: int = 0  # and that the sampler had been asked for
    is_taken_up: bool = False
    is_seeded: bool = False  # workers were there already when the uninterrupted run came here
    ranks: int = 1  # how many go through the units side by side
    batch_size: int = 1  # units in a batch
    batches: int = 0  # delivered since
    failed: int = 0  # batches that raised, not yet followed by one that came
    handed: int | None = None  # units given to this loader since; not known of streams
    is_drawn_out: bool = False  # more has been asked for than there was

    @property
    def delivered(self) -> int:
        """Units that users have seen."""
        units = self.batches * self.batch_size
        # The last batch of an epoch may be a smaller one.
        mine = units if self.handed is None else min(units, self.handed)
        return self.taken + mine * self.ranks

    @property
    def drawn(self) -> int:
        """How often a unit has been asked for; at the end, once more than there are units."""
        mine = self.batches * self.batch_size if self.handed is None else self.handed
        return max(self.taken_drawn, self.taken + mine * self.ranks + int(self.is_drawn_out))


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What an order depends on besides the dataset: samplers, and the generators they draw from."""

    samplers: dict[str, Any]
    generators: dict[str, Any]

    @classmethod
    def find(cls, sampler: Any, generator: torch.Generator | None) -> "Sources":
        """Look through a sampler and those inside of it."""
        samplers: dict[str, Any] = {}
        generators: dict[str, Any] = {} if generator is None else {"generator": generator}
        waiting = [("sampler", sampler)]
        while waiting:
            path, one = waiting.pop()
            if one is None or any(one is other for other in samplers.values()):
                continue
            samplers[path] = one
            for name, value in getattr(one, "__dict__", {}).items():
                if _is_generator(value):
                    generators[f"{path}.{name}"] = value
                elif isinstance(value, Sampler) or name in {"sampler", "batch_sampler"}:
                    waiting.append((f"{path}.{name}", value))
        return cls(samplers=samplers, generators=generators)

    def read(self) -> dict[str, Any]:
        """All of it as it is now, the global generators included."""
        return {"global": read_randomness(), **self.read_own()}

    def read_own(self) -> dict[str, Any]:
        """What belongs to the loader alone."""
        return {
            "generators": {path: _read_generator(one) for path, one in self.generators.items()},
            "samplers": {path: _read_sampler(one) for path, one in self.samplers.items()},
        }

    def set_generators(self, state: Mapping[str, Any]) -> None:
        """Draw on from where that state was read."""
        if "global" in state:
            set_randomness(state["global"])
        for path, one in self.generators.items():
            if path in state["generators"]:
                _set_generator(one, state["generators"][path])

    def set_samplers(self, state: Mapping[str, Any]) -> None:
        """Give samplers what they knew when that state was read."""
        for path, one in self.samplers.items():
            known = state["samplers"].get(path, {})
            if "epoch" in known and hasattr(one, "epoch"):
                # Set by its own method where there is one, which may do more.
                tell = one.set_epoch if _is_told(one) else partial(setattr, one, "epoch")
                tell(known["epoch"])
            if "state" in known and isinstance(one, Stateful):
                one.load_state_dict(known["state"])

    def find_other_epoch(self, state: Mapping[str, Any]) -> tuple[int, int] | None:
        """The epoch of that state and the one that the user has set since, if they differ."""
        for path, one in self.samplers.items():
            was = state["samplers"].get(path, {}).get("epoch")
            if was is not None and _is_told(one) and one.epoch != was:
                return was, one.epoch
        return None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever is drawn inside, all generators are afterwards where they were before."""
        before = self.read()
        try:
            yield
        finally:
            self.set_generators(before)


def find_units(index_sampler: Any) -> Any:
    """What gives the smallest units that can be counted: single samples, if batches are plain."""
    return index_sampler.sampler if _is_plain_batching(index_sampler) else index_sampler


def is_dealt(sampler: Any) -> bool:
    """Whether ranks share one order in the way of torch's own sampler."""
    return getattr(type(sampler), "__iter__", None) is DistributedSampler.__iter__


def deal_rest(sampler: DistributedSampler[Any], delivered: int) -> list[int]:
    """This rank's part of what is left when all ranks have had so many samples of an epoch.

    The ranks need not be as many as they were. Where the rest does not come out even, it is filled
    up or cut short as the sampler does at the end of any epoch.
    """
    alone = DistributedSampler(
        sampler.dataset, num_replicas=1, rank=0, shuffle=sampler.shuffle, seed=sampler.seed
    )
    alone.set_epoch(sampler.epoch)
    order: list[int] = list(alone)
    rest, ranks = order[delivered:], sampler.num_replicas
    if sampler.drop_last:
        rest = rest[: len(rest) // ranks * ranks]
    elif rest:
        missing = -len(rest) % ranks
        rest += (order * math.ceil(missing / len(order)))[:missing]
    return rest[sampler.rank :: ranks]


class Watched:
    """Stands in a loader for its sampler or batch sampler."""

    def __init__(
        self, index_sampler: Any, current: Callable[[], tuple[Epoch | None, Sources]]
    ) -> None:
        self._index_sampler = index_sampler
        self._current = current

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __iter__(self) -> Iterator[Any]:
        epoch, sources = self._current()
        if epoch is None:
            return iter(self._index_sampler)
        if not _is_plain_batching(self._index_sampler):
            return iter(_Units(self._index_sampler, sources, epoch, is_at_once=False))
        batches = copy.copy(self._index_sampler)
        epoch.batch_size = batches.batch_size
        batches.sampler = _Units(batches.sampler, sources, epoch, is_at_once=True)
        return iter(batches)


class _Units:
    """One pass over a sampler; `is_at_once` if its first unit is asked for as soon as it begins."""

    def __init__(self, sampler: Any, sources: Sources, epoch: Epoch, *, is_at_once: bool) -> None:
        self._sampler = sampler
        self._sources = sources
        self._epoch = epoch
        self._is_at_once = is_at_once

    def __iter__(self) -> Iterator[Any]:
        epoch = self._epoch
        epoch.handed = 0
        epoch.ranks = self._sampler.num_replicas if is_dealt(self._sampler) else 1
        if epoch.is_taken_up:
            return self._take_up()
        if epoch.start and epoch.is_seeded:
            # A loader that starts workers begins twice, one that has them once.
            self._sources.set_generators(epoch.start[0])
        # A sampler may draw here or at its first index: the state of both moments is needed.
        epoch.start = [self._sources.read()]
        return self._watch(iter(self._sampler))

    def _take_up(self) -> Iterator[Any]:
        epoch = self._epoch
        if is_dealt(self._sampler):
            yield from self._watch(iter(deal_rest(self._sampler, epoch.taken)))
            return
        with self._sources.kept():
            self._sources.set_generators(epoch.start[0])
            units = iter(self._sampler)
            for state in epoch.start[1:]:
                self._sources.set_generators(state)
            passed = sum(1 for _ in itertools.islice(units, epoch.taken))
            # Drawn here and not later, so that generators can go on from where they were left.
            ahead = list(itertools.islice(units, epoch.taken_drawn - epoch.taken))
        if passed < epoch.taken:
            raise InvalidArgument(
                f"the epoch was left after {epoch.taken} steps of {type(self._sampler).__name__}, "
                f"which now ends after {passed}: give the sampler that it was saved with"
            )
        yield from self._watch(itertools.chain(ahead, units))

    def _watch(self, units: Iterator[Any]) -> Iterator[Any]:
        if not self._is_at_once and len(self._epoch.start) == 1:
            self._epoch.start.append(self._sources.read())
        for unit in units:
            self._epoch.handed = (self._epoch.handed or 0) + 1
            yield unit
        self._epoch.is_drawn_out = True


def _is_plain_batching(index_sampler: Any) -> bool:
    return getattr(type(index_sampler), "__iter__", None) is BatchSampler.__iter__


def _is_generator(value: Any) -> bool:
    kinds = torch.Generator | random.Random | np.random.Generator | np.random.RandomState
    # The system's own source has no state.
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def _read_generator(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state


def _set_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _read_sampler(sampler: Any) -> dict[str, Any]:
    state: dict[str, Any] = {}
    if type(getattr(sampler, "epoch", None)) is int:
        state["epoch"] = sampler.epoch
    if isinstance(sampler, Stateful):
        # A copy, since it is kept while the sampler goes on.
        state["state"] = copy.deepcopy(sampler.state_dict())
    return state


def _is_told(sampler: Any) -> bool:
    return callable(getattr(sampler, "set_epoch", None)) and hasattr(sampler, "epoch")
