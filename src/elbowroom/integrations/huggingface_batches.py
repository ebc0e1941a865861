"""The order of a Trainer's batches, so that it can be drawn again.

The Trainer passes over batches that were trained on, by their number. That they are the same again
is not seen to: samplers draw from random numbers when an epoch begins, and data sets and collators
when a batch is made, one batch ahead of the training. So what they draw from is kept, and is set
again at the same moments.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint.samplers import Sources
from elbowroom.store.checkpoint.sources import read_randomness, set_randomness

_Fetch = tuple[int, dict[str, Any]]


class Batches:
    """What a loader's epoch was drawn from, and the batches that are made but not trained on.

    Of these only two moments count: when the last batch of the step before was made, which is
    ahead of it, and when the first batch for this step was made; others followed at once.
    """

    def __init__(self, loader: Any, batches_per_step: int) -> None:
        self._loader = loader
        self._facts = {
            "batches in an epoch": _length(loader),
            "gradient accumulation steps": batches_per_step,
        }
        self._start: dict[str, Any] | None = None
        self._ahead: _Fetch | None = None
        self._first: _Fetch | None = None
        self._latest: _Fetch | None = None
        self._left: Mapping[str, Any] | None = None
        self._due: dict[int, dict[str, Any]] = {}
        self._is_dropped = False
        self._kinds: list[tuple[Any, type]] = []
        # Of a stream, what was trained on is loaded again by another loader.
        sampler = getattr(loader, "batch_sampler", None)
        if sampler is not None and not isinstance(loader.dataset, IterableDataset):
            self._replace_iter(sampler, lambda below: self._watch(below()))

    def state_dict(self) -> dict[str, Any]:
        """Before a step, when its batches are there."""
        return {
            "facts": self._facts,
            "seeds": {path: one.initial_seed for path, one in self._seeded().items()},
            "start": self._start,
            "fetches": [list(f) for f in (self._ahead, self._first) if f is not None],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Draw that order again when the next epoch begins."""
        was = state_dict["facts"]
        for name, now in self._facts.items():
            if was.get(name) != now:
                raise InvalidArgument(
                    f"the checkpoint was saved with {was.get(name)} {name}, and there are {now}: "
                    "train with the data and the arguments that it was saved with"
                )
        self._left = state_dict

    def begin(self) -> None:
        """An epoch begins."""
        self._ahead = self._first = self._latest = None
        sources = self._sources()
        left, self._left = self._left, None
        if left is not None:
            for path, one in self._seeded().items():
                one.initial_seed = left["seeds"].get(path, one.initial_seed)
            if left["start"] is not None:
                sources.set_generators(left["start"])
                sources.set_samplers(left["start"])
                self._due = {number: randomness for number, randomness in left["fetches"]}
        self._start = sources.read()

    def pass_on(self) -> None:
        """A step begins, and is no longer what would be saved."""
        self._due = {}
        if self._latest is not None:
            self._ahead = self._latest
        self._first = self._latest = None

    def end(self) -> None:
        """The epoch is over."""
        self._start = self._ahead = self._first = self._latest = None

    def drop(self) -> None:
        """Give no batches any more."""
        self._is_dropped = True
        if not self._kinds:
            self._replace_iter(self._loader, lambda below: iter(()))

    def release(self) -> None:
        """Leave the loader as it was."""
        while self._kinds:
            _set_class(*self._kinds.pop())

    def _watch(self, batches: Iterator[Any]) -> Iterator[Any]:
        if self._is_dropped:
            return
        for number, indices in enumerate(batches):
            if number in self._due:
                set_randomness(self._due[number])
            self._latest = number, read_randomness()
            self._first = self._first or self._latest
            yield indices

    def _replace_iter(self, one: Any, make: Callable[[Any], Iterator[Any]]) -> None:
        """Change how an object is gone through, by a class of its own: others hold the object."""
        kind = type(one)
        made = type(kind.__name__, (kind,), {"__iter__": lambda me: make(super(made, me).__iter__)})
        # Lists of batches can do as samplers, and have a class that stays.
        with contextlib.suppress(TypeError):
            _set_class(one, made)
            self._kinds.append((one, kind))

    def _sources(self) -> Sources:
        sampler = getattr(self._loader, "batch_sampler", None)
        return Sources.find(sampler, getattr(self._loader, "generator", None))

    def _seeded(self) -> dict[str, Any]:
        samplers = self._sources().samplers
        return {p: s for p, s in samplers.items() if type(getattr(s, "initial_seed", None)) is int}


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _set_class(one: Any, kind: type) -> None:
    # Accelerate's loaders give themselves out for others, and so cannot be told directly.
    object.__dict__["__class__"].__set__(one, kind)
