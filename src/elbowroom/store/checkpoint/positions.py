"""Where a loader stands in its epoch: told at any time, and gone back to at the next `iter`."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint.samplers import Epoch, Sources, Watched, find_units, is_dealt
from elbowroom.store.checkpoint.sources import CheckpointWarning, Stateful
from elbowroom.store.checkpoint.streams import forgets_buffer

_VERSION = 1
# Settings of samplers that make another order of the same samples.
_SETTINGS = ("replacement", "shuffle", "num_replicas")


class Position(ABC):
    """What a loader has delivered of its epoch.

    It knows the loader's parts and not the loader, which can be freed as if nobody followed it.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._epoch: Epoch | None = None
        self._is_pending = False  # the epoch waits for the next iter
        self._running: int | None = None  # the id of the iterator that counts
        # What the seed of workers that stay was drawn from.
        self._workers: Tensor | None = None if loader._iterator is None else torch.get_rng_state()
        self._keeps_seed = False
        self._look_at(loader)

    def state_dict(self) -> dict[str, Any]:
        """The position between two batches, and what the order of its epoch was drawn from."""
        epoch = self._epoch
        return {
            "position": _VERSION,
            "facts": self._facts(),
            "workers": self._workers,
            "sources": self._sources.read_own(),
            "dataset": self._dataset.state_dict() if self._is_told_by_dataset() else None,
            "epoch": None
            if epoch is None
            else {
                "start": list(epoch.start),
                "delivered": epoch.delivered,
                "drawn": epoch.drawn,
            },
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next `iter(loader)` give the rest of the epoch in which that state was told."""
        if not isinstance(state_dict, Mapping) or state_dict.get("position") != _VERSION:
            raise InvalidArgument(
                "the checkpoint was saved with another kind of loader: give a loader of that kind, "
                "or leave loader= out to begin a new epoch"
            )
        left, own = state_dict["epoch"], state_dict["sources"]
        epoch = None if left is None else self._read_epoch(left, state_dict["facts"])
        self._sources.set_generators(own)
        self._sources.set_samplers(epoch.start[0] if epoch is not None and epoch.start else own)
        if state_dict["dataset"] is not None and self._is_told_by_dataset():
            self._dataset.load_state_dict(state_dict["dataset"])
        self._epoch, self._is_pending, self._running = epoch, epoch is not None, None
        self._workers = state_dict["workers"]
        # An uninterrupted run has drawn this seed before.
        is_drawn = epoch is not None and not self._is_replayed()
        self._keeps_seed = is_drawn or self._workers is not None

    def begin(self, loader: DataLoader[Any], make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Start a new epoch, or take up the one that was left; `make` is the loader's own iter."""
        self._look_at(loader)
        before = self._epoch, self._is_pending
        if not self._is_pending or self._has_moved_on():
            self._epoch = Epoch(is_seeded=self._keeps_seed)
        self._is_pending = False
        try:
            inner = self._start(make)
        except BaseException:
            self._epoch, self._is_pending = before
            raise
        self._running = id(inner)
        return inner

    def build(self, loader: DataLoader[Any], make: Callable[[], Any]) -> Any:
        """Make the iterator below, with no seed drawn where an uninterrupted run draws none."""
        given = loader.generator
        source = torch.default_generator if given is None else given
        if self._keeps_seed:
            self._keeps_seed = False
            source = loader.generator = source.clone_state()
            if self._workers is not None and self._is_replayed():
                # What workers make of their seed has to come again.
                source.set_state(self._workers)
        self._workers = source.get_state() if loader.persistent_workers else None
        try:
            return make()
        finally:
            loader.generator = given

    def watch(self, index_sampler: Any) -> Any:
        """What the loader takes its indices from."""
        return Watched(index_sampler, lambda: (self._epoch, self._sources))

    def count(self, inner: Iterator[Any]) -> None:
        """A batch came."""
        if self._epoch is not None and self._running == id(inner):
            # Going on after a failure passes the batch that failed.
            self._epoch.batches += 1 + self._epoch.failed
            self._epoch.failed = 0

    def fail(self, inner: Iterator[Any]) -> None:
        """A batch could not be made."""
        if self._epoch is not None and self._running == id(inner):
            self._epoch.failed += 1

    def end(self, inner: Iterator[Any]) -> None:
        """The epoch is over."""
        if self._running == id(inner):
            self._epoch = self._running = None

    def _look_at(self, loader: DataLoader[Any]) -> None:
        self._dataset: Any = loader.dataset
        self._index_sampler: Any = (
            loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        )
        self._batching = {
            "batch_size": loader.batch_size,
            "drop_last": loader.drop_last,
            "num_workers": loader.num_workers,
        }
        self._sources = Sources.find(find_units(self._index_sampler), loader.generator)

    def _read_epoch(self, left: Mapping[str, Any], facts: Mapping[str, Any]) -> Epoch:
        self._check(facts)
        start, delivered, drawn = list(left["start"]), left["delivered"], left["drawn"]
        if type(delivered) is not int or type(drawn) is not int or not 0 <= delivered <= drawn:
            raise InvalidArgument(
                f"the checkpoint's loader has delivered {delivered!r} of {drawn!r} samples, which "
                "cannot be: restore an older checkpoint"
            )
        return Epoch(
            start=start, taken=delivered, taken_drawn=drawn, is_taken_up=bool(start), is_seeded=True
        )

    def _check(self, was: Mapping[str, Any]) -> None:
        now = self._facts()
        for name in [*was, *now]:
            if was.get(name) != now.get(name):
                raise InvalidArgument(
                    f"the epoch was left half way with {name} {was.get(name)!r}, and this loader "
                    f"has {now.get(name)!r}: give the loader what it had, or leave loader= out to "
                    "begin a new epoch"
                )

    def _has_moved_on(self) -> bool:
        assert self._epoch is not None
        other = self._sources.find_other_epoch(self._epoch.start[0]) if self._epoch.start else None
        if other is None:
            return False
        warnings.warn(
            f"the checkpoint was saved in epoch {other[0]} of the sampler, which has been set to "
            f"epoch {other[1]} since: what was left of epoch {other[0]} is passed over",
            CheckpointWarning,
            stacklevel=4,
        )
        self._keeps_seed = False
        return True

    def _is_told_by_dataset(self) -> bool:
        return False

    def _is_replayed(self) -> bool:
        return False

    @abstractmethod
    def _facts(self) -> dict[str, Any]:
        """What must be the same for a position to mean the same, in words for the user."""

    @abstractmethod
    def _start(self, make: Callable[[], Iterator[Any]]) -> Iterator[Any]: ...


class OrderPosition(Position):
    """In an order of indices: what has been delivered is passed over without being loaded."""

    def _facts(self) -> dict[str, Any]:
        sampler = find_units(self._index_sampler)
        facts: dict[str, Any] = {
            "sampler": type(sampler).__qualname__,
            "dataset length": _length(self._dataset),
        }
        settings = {
            f"{path}.{name}": vars(one)[name]
            for path, one in self._sources.samplers.items()
            for name in _SETTINGS
            if type(getattr(one, "__dict__", {}).get(name)) in {bool, int}
        }
        if is_dealt(sampler):
            # What depends on the number of ranks may change: the rest is dealt anew.
            settings.pop("sampler.num_replicas", None)
            settings["sampler.seed"] = sampler.seed
        else:
            facts |= {"sampler length": _length(sampler), "number of ranks": _count_ranks()}
        return {**facts, **settings, "generators": sorted(self._sources.generators)}

    def _start(self, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        return make()


class StreamPosition(Position):
    """In a dataset that can only be iterated over.

    One that can tell its state is asked for it. Of any other, what has been delivered is loaded
    again and dropped: right if it gives the same samples again, and slow.
    """

    def _is_told_by_dataset(self) -> bool:
        # Workers have copies of the dataset, which are ahead and cannot be asked.
        is_asked = self._batching["num_workers"] == 0 and isinstance(self._dataset, Stateful)
        return is_asked and not forgets_buffer(self._dataset)

    def _is_replayed(self) -> bool:
        return not self._is_told_by_dataset()

    def _facts(self) -> dict[str, Any]:
        is_told = self._is_told_by_dataset()
        return {
            "dataset": type(self._dataset).__qualname__,
            "state of its own in the dataset": is_told,
            "number of ranks": _count_ranks(),
            **({} if is_told else self._batching),
        }

    def count(self, inner: Iterator[Any]) -> None:
        """A batch came; a smaller one is made when the dataset has nothing more."""
        super().count(inner)
        if self._epoch is not None and self._running == id(inner):
            fetcher = getattr(inner, "_dataset_fetcher", None)
            self._epoch.is_drawn_out = getattr(fetcher, "ended", False)

    def _start(self, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        epoch = self._epoch
        assert epoch is not None
        if not epoch.is_taken_up:
            epoch.start = [self._sources.read()]
            return make()
        if self._is_told_by_dataset():
            if epoch.taken_drawn > epoch.taken:
                # The dataset has come to its end, and stands at the beginning of the next epoch.
                self._keeps_seed = False
                return iter(())
            return make()
        with self._sources.kept():
            self._sources.set_generators(epoch.start[0])
            inner = make()
            for number in range(epoch.taken):
                try:
                    next(inner)
                except StopIteration:
                    raise InvalidArgument(
                        f"the epoch was left after {epoch.taken} batches, and the dataset now ends "
                        f"after {number}: give the dataset that it was saved with"
                    ) from None
        return inner


def _count_ranks() -> int:
    is_shared = dist.is_available() and dist.is_initialized()
    return dist.get_world_size() if is_shared else 1


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None
