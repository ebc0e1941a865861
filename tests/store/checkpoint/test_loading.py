"""A loader that is left anywhere and taken up again gives what it would have given anyway."""

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from elbowroom.store.checkpoint.loading import follow_loader
from elbowroom.store.checkpoint.sources import Stateful, read_randomness, set_randomness
from elbowroom.store.checkpoint.state import flatten, unflatten

Loader = DataLoader[Any]


class Numbers(Dataset[Tensor]):
    """Gives its indices, and remembers which were asked for."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        self.asked.append(int(index))
        return torch.tensor(index)


class Noisy(Numbers):
    """Adds something drawn from every global generator, as augmentation does."""

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, *draw()])


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002


def draw() -> tuple[float, float, float]:
    """A number from every global generator."""
    return torch.rand(()).item(), random.random(), float(np.random.rand())  # noqa: NPY002


def store_and_read(state: Any) -> Any:
    """What comes back from a checkpoint."""
    tree, tensors = flatten(state, "state")
    copies = [tensor.clone() for _, tensor in tensors]
    return unflatten(json.loads(json.dumps(tree)), lambda number: copies[number])


def train(make: Callable[[], Loader], epochs: int = 2, stops: Sequence[int] = ()) -> list[Any]:
    """Every batch with what is drawn after it, and the ends of epochs, of a run that dies at stops.

    Each life has a new loader, and generators that stand anywhere.
    """
    seen: list[Any] = []
    state: Any = None
    for life, stop in enumerate([*stops, -1]):
        seed(life)
        loader = make()
        position = follow_loader(loader)
        if state is not None:
            set_randomness(state["randomness"])
            position.load_state_dict(state["loader"])
        for epoch in live(loader, 0 if state is None else state["epoch"], epochs, seen):
            if len(seen) == stop:
                told = position.state_dict()
                state = {"epoch": epoch, "loader": told, "randomness": read_randomness()}
                state = store_and_read(state)
                break
    return seen


def live(loader: Loader, epoch: int, epochs: int, seen: list[Any]) -> Iterator[int]:
    """Train; before it and after every step, yield the epoch that a checkpoint would hold."""
    yield epoch
    while epoch < epochs:
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            seen.append((batch.tolist(), draw()))
            yield epoch
        epoch += 1
        seen.append("end of epoch")
        yield epoch


class Shuffled(Sampler[int]):
    """Draws a permutation from one of the global generators, at its first index."""

    def __init__(self, length: int, kind: str) -> None:
        self.length, self.kind = length, kind

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.length))
        if self.kind == "python":
            random.shuffle(order)
        elif self.kind == "numpy":
            np.random.shuffle(order)  # noqa: NPY002
        yield from order


class Endless(Sampler[int]):
    """Draws a permutation whenever the last one is used up, from generators of its own."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.first, self.second = np.random.default_rng(1), random.Random(2)

    def __len__(self) -> int:
        return 3 * self.length

    def __iter__(self) -> Iterator[int]:
        for _ in range(3):
            order = self.first.permutation(self.length).tolist()
            self.second.shuffle(order)
            yield from order


class Numbered(Sampler[int]):
    """Counts its epochs by itself."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch = length, 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        generator = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(self.length, generator=generator).tolist())


class Knowing(Sampler[int]):
    """Has a state of its own, which changes with every index."""

    def __init__(self, length: int) -> None:
        self.length, self.known = length, {"last": 0}

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.length):
            self.known["last"] = (self.known["last"] * 5 + 3) % 64
            yield self.known["last"] % self.length

    def state_dict(self) -> dict[str, int]:
        return self.known

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.known = dict(state)


class Buckets(Sampler[list[int]]):
    """Batches of several sizes, drawn as soon as an iteration begins."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.length).tolist()
        return iter([order[:1], order[1:4], order[4:5], order[5:]])


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def load(dataset: Numbers, **options: Any) -> Loader:
    options.setdefault("batch_size", 3)
    return DataLoader(dataset, **options)


def numbers_of(loader: Loader, most: int | None = None) -> list[int]:
    return [
        number for batch in itertools.islice(loader, most) for number in batch.reshape(-1).tolist()
    ]


def taken_up(position: Stateful, loader: Loader) -> Stateful:
    again = follow_loader(loader)
    again.load_state_dict(store_and_read(position.state_dict()))
    return again


N = 11
SAMPLERS: dict[str, Callable[[Numbers], dict[str, Any]]] = {
    "in order": lambda _: {},
    "shuffled": lambda _: {"shuffle": True},
    "last dropped": lambda _: {"shuffle": True, "drop_last": True},
    "single samples": lambda _: {"shuffle": True, "batch_size": None},
    "generator": lambda _: {"shuffle": True, "generator": generator()},
    "two generators": lambda d: {
        "sampler": RandomSampler(d, generator=generator()),
        "generator": generator(),
    },
    "replacement": lambda d: {"sampler": RandomSampler(d, True, 70)},
    "lazy generator": lambda d: {"sampler": RandomSampler(d, True, 70, generator())},
    "several rounds": lambda d: {"sampler": RandomSampler(d, False, 25, generator())},
    "weighted": lambda _: {"sampler": WeightedRandomSampler([1.0, 2, 3] * 3, 14)},
    "weighted generator": lambda _: {
        "sampler": WeightedRandomSampler([1.0, 2, 3] * 3, 14, generator=generator())
    },
    "subset": lambda _: {"sampler": SubsetRandomSampler([1, 3, 5, 7, 8])},
    "list": lambda _: {"sampler": [4, 2, 2, 9, 1]},
    "python": lambda _: {"sampler": Shuffled(N, "python")},
    "numpy": lambda _: {"sampler": Shuffled(N, "numpy"), "batch_size": None},
    "endless": lambda _: {"sampler": Endless(N)},
    "numbered": lambda _: {"sampler": Numbered(N)},
    "knowing": lambda _: {"sampler": Knowing(N)},
    "knowing, single": lambda _: {"sampler": Knowing(N), "batch_size": None},
    "distributed": lambda d: {"sampler": DistributedSampler(d, num_replicas=2, rank=1)},
    "batches": lambda d: {
        "batch_sampler": BatchSampler(RandomSampler(d), 4, True),
        "batch_size": 1,
    },
    "buckets": lambda _: {"batch_sampler": Buckets(N), "batch_size": 1},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_is_taken_up_anywhere(name: str) -> None:
    def make() -> Loader:
        dataset = Noisy(N)
        return load(dataset, **SAMPLERS[name](dataset))

    plain = train(make)
    assert plain.count("end of epoch") == 2
    for stop in range(len(plain) + 1):
        assert train(make, stops=[stop]) == plain
    assert train(make, stops=list(range(len(plain)))) == plain


# Those that differ in when, and from what, they draw.
WITH_WORKERS = [
    *("shuffled", "last dropped", "single samples", "generator", "lazy generator"),
    *("numpy", "endless", "knowing", "buckets"),
]


@pytest.mark.parametrize("is_persistent", [False, True], ids=["workers", "persistent workers"])
@pytest.mark.parametrize("name", WITH_WORKERS)
def test_samplers_are_taken_up_with_workers(name: str, is_persistent: bool) -> None:
    def make() -> Loader:
        dataset = Numbers(N)
        workers = {"num_workers": 2, "persistent_workers": is_persistent}
        return load(dataset, **SAMPLERS[name](dataset), **workers)

    plain = train(make, epochs=3)
    end = plain.index("end of epoch") + 1
    assert train(make, 3, [1, 1, end - 1, end, end + 2]) == plain


@pytest.mark.parametrize(
    ("name", "workers"), [*((name, 0) for name in SAMPLERS), ("shuffled", 2), ("buckets", 2)]
)
def test_following_changes_nothing(name: str, workers: int) -> None:
    def give(is_followed: bool) -> list[Any]:
        seed(0)
        dataset = Noisy(N) if workers == 0 else Numbers(N)
        loader = load(dataset, **SAMPLERS[name](dataset), num_workers=workers)
        position = follow_loader(loader) if is_followed else None
        seen: list[Any] = []
        for _ in live(loader, 0, 2, seen):
            if position is not None:
                position.state_dict()
        return seen

    assert give(is_followed=True) == give(is_followed=False)


@settings(max_examples=60)
@given(
    length=st.integers(1, 23),
    batch_size=st.integers(1, 8),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    stops=st.lists(st.integers(0, 60), max_size=4).map(sorted),
)
def test_any_interruptions_of_any_loader(
    length: int, batch_size: int, drop_last: bool, shuffle: bool, stops: list[int]
) -> None:
    def make() -> Loader:
        return load(Noisy(length), batch_size=batch_size, drop_last=drop_last, shuffle=shuffle)

    plain = train(make, epochs=3)
    assert train(make, 3, [stop for stop in stops if stop <= len(plain)]) == plain


@settings(max_examples=60)
@given(
    length=st.integers(1, 40),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    batches=st.integers(1, 4),
    shuffle=st.booleans(),
)
def test_the_batch_size_may_change(
    length: int, sizes: list[int], batches: int, shuffle: bool
) -> None:
    seed(0)
    first = load(Numbers(length), batch_size=sizes[0], shuffle=shuffle)
    position = follow_loader(first)
    seen = numbers_of(first, batches)
    for size in sizes[1:]:
        if position.state_dict()["epoch"] is None:
            break
        loader = load(Numbers(length), batch_size=size, shuffle=shuffle)
        position = taken_up(position, loader)
        seen += numbers_of(loader, batches)
    if position.state_dict()["epoch"] is not None:
        loader = load(Numbers(length), batch_size=sizes[0], shuffle=shuffle)
        taken_up(position, loader)
        seen += numbers_of(loader)
    assert sorted(seen) == list(range(length))
