"""The order of a Trainer's batches, so that it can be drawn again.

The Trainer passes over batches that were trained on, by their number. That they are the same again
is not seen to: samplers draw from random numbers when an epoch begins, and data sets and collators
when a batch is made, one batch ahead of the training. So what they draw from is kept, and is set
again at the same moments.
"""

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.store.checkpoint import CheckpointWarning
from elbowroom.store.checkpoint.samplers import Sources
from elbowroom.store.checkpoint.sources import read_randomness, set_randomness
from elbowroom.store.checkpoint.state import flatten, unflatten

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
        self._epochs = 0
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
            "epochs": self._epochs,
            "seeds": {path: one.initial_seed for path, one in self._seeded().items()},
            "start": None if self._start is None else _pack(self._start),
            "fetches": _pack([list(f) for f in (self._ahead, self._first) if f is not None]),
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
        self._epochs = state_dict["epochs"]
        if was["batches in an epoch"] is None and self._epochs > 1:
            warnings.warn(
                "the Trainer finds no place in data of unknown length that it has gone through "
                "before: it begins at their first batch",
                CheckpointWarning,
                stacklevel=2,
            )

    def begin(self) -> bool:
        """An epoch begins; return whether it is one that was left half way."""
        self._ahead = self._first = self._latest = None
        sources = self._sources()
        left, self._left = self._left or {}, None
        for path, one in self._seeded().items():
            one.initial_seed = left.get("seeds", {}).get(path, one.initial_seed)
        start = left.get("start")
        if start is None:
            self._epochs += 1
        else:
            self._due = dict(_unpack(left["fetches"]))
            before = _unpack(start)
            sources.set_generators(before)
            sources.set_samplers(before)
        self._start = sources.read()
        return start is not None

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
        kind: Any = type(one)
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


def _pack(state: Any) -> Tensor:
    """A state as one tensor of bytes, in place of a dozen small ones."""
    tree, tensors = flatten(state, "batches")
    held = [(str(t.dtype), list(t.shape), _bytes_of(t).hex()) for _, t in tensors]
    text = json.dumps([tree, held])
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def _unpack(packed: Tensor) -> Any:
    try:
        tree, held = json.loads(_bytes_of(packed))
        dtypes = [getattr(torch, dtype.removeprefix("torch.")) for dtype, _, _ in held]
        tensors = [
            torch.frombuffer(bytearray.fromhex(text), dtype=dtype).reshape(shape)
            for dtype, (_, shape, text) in zip(dtypes, held, strict=True)
        ]
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptData(f"the checkpoint's order of batches is none: {error}") from error
    return unflatten(tree, tensors.__getitem__)


def _bytes_of(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _set_class(one: Any, kind: type) -> None:
    # Accelerate's loaders give themselves out for others, and so cannot be told directly.
    object.__dict__["__class__"].__set__(one, kind)
