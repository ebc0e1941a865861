"""Datasets that can only be iterated over are taken up where they were left."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint.loading import follow_loader

from .test_loading import Loader, Noisy, Numbers, store_and_read, train


class Stream(IterableDataset[Tensor]):
    """An order drawn at the start of an epoch, shared among workers."""

    def __init__(self, length: int, noise: Numbers | None = None) -> None:
        self.length = length
        self.items = Numbers(length) if noise is None else noise

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        # The seed that a loader gives to its workers differs by their number.
        seed = torch.empty((), dtype=torch.int64).random_() if worker is None else worker.seed
        generator = torch.Generator().manual_seed(int(seed) - number)
        for index in torch.randperm(self.length, generator=generator).tolist()[number::count]:
            yield self.items[index]


class Keeper(IterableDataset[Tensor]):
    """Knows where it is."""

    def __init__(self, length: int, noise: Numbers | None = None) -> None:
        self.length, self.next = length, 0
        self.items = Numbers(length) if noise is None else noise

    def __iter__(self) -> Iterator[Tensor]:
        while self.next < self.length:
            self.next += 1
            yield self.items[self.next - 1]
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


STREAMS: dict[str, Callable[[], Loader]] = {
    "stream": lambda: DataLoader(Stream(11, Noisy(11)), 3),
    "last dropped": lambda: DataLoader(Stream(11, Noisy(11)), 3, drop_last=True),
    "single samples": lambda: DataLoader(Stream(5), None),
    "generator": lambda: DataLoader(Stream(11), 3, generator=torch.Generator().manual_seed(3)),
    "keeper": lambda: DataLoader(Keeper(11, Noisy(11)), 3),
    "keeper that comes out even": lambda: DataLoader(Keeper(9, Noisy(9)), 3),
    "single samples of a keeper": lambda: DataLoader(Keeper(5), None),
}


@pytest.mark.parametrize("name", STREAMS)
def test_every_stream_is_taken_up_anywhere(name: str) -> None:
    plain = train(STREAMS[name])
    assert plain.count("end of epoch") == 2
    for stop in range(len(plain) + 1):
        assert train(STREAMS[name], stops=[stop]) == plain
    assert train(STREAMS[name], stops=list(range(len(plain)))) == plain


@pytest.mark.parametrize("is_persistent", [False, True], ids=["workers", "persistent workers"])
@pytest.mark.parametrize("kind", [Stream, Keeper])
def test_streams_are_taken_up_with_workers(
    kind: type[Stream | Keeper], is_persistent: bool
) -> None:
    # A keeper's copies in the workers cannot be asked: it is read again, as any stream.
    def make() -> Loader:
        return DataLoader(kind(11), 3, num_workers=2, persistent_workers=is_persistent)

    plain = train(make)
    end = plain.index("end of epoch") + 1
    for stops in ([1], [end - 1], [end], [2, 2, end + 1]):
        assert train(make, stops=stops) == plain


def left_after(loader: Loader, batches: int) -> Any:
    position = follow_loader(loader)
    for _ in zip(range(batches), loader, strict=False):
        pass
    return store_and_read(position.state_dict())


def test_a_keeper_is_not_read_again() -> None:
    state = left_after(DataLoader(Keeper(12), 3), 2)
    dataset = Keeper(12)
    loader = DataLoader(dataset, 2)  # what it keeps are samples: the batch size may change
    follow_loader(loader).load_state_dict(state)
    assert [batch.tolist() for batch in loader] == [[6, 7], [8, 9], [10, 11]]
    assert dataset.items.asked == list(range(6, 12))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DataLoader(Stream(12), 2), "with batch_size 3, and this loader has 2"),
        (lambda: DataLoader(Stream(12), 3, num_workers=2), "with num_workers 0, .* has 2"),
        (lambda: DataLoader(Keeper(12), 3), "with dataset 'Stream', and this loader has 'Keeper'"),
        (lambda: DataLoader(Numbers(12), 3), "with dataset 'Stream', and this loader has None"),
    ],
)
def test_what_makes_other_batches_is_refused(make: Callable[[], Loader], said: str) -> None:
    state = left_after(DataLoader(Stream(12), 3), 2)
    with pytest.raises(InvalidArgument, match=said):
        follow_loader(make()).load_state_dict(state)


def test_a_stream_that_ends_too_early_is_refused_and_stays_where_it_was() -> None:
    state = left_after(DataLoader(Stream(12), 3), 3)
    loader = DataLoader(Stream(6), 3)
    position = follow_loader(loader)
    position.load_state_dict(state)
    before = torch.get_rng_state()
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="after 3 batches, and the dataset now ends"):
            iter(loader)
    assert torch.equal(before, torch.get_rng_state())
    assert position.state_dict()["epoch"]["delivered"] == 3
