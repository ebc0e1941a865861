"""An epoch that several ranks share is left and taken up by any number of them."""

from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint import CheckpointWarning
from elbowroom.store.checkpoint.loading import follow_loader
from elbowroom.store.checkpoint.samplers import deal_rest

from .test_loading import Numbers, store_and_read


class Ranks:
    """The ranks of one process group, in one process."""

    def __init__(self, ranks: int, length: int, batch_size: int | None = 2, **options: Any) -> None:
        options.setdefault("seed", 3)
        self.samplers = [
            DistributedSampler(Numbers(length), ranks, rank, **options) for rank in range(ranks)
        ]
        self.loaders = [
            DataLoader(sampler.dataset, batch_size, sampler=sampler) for sampler in self.samplers
        ]
        self.positions = [follow_loader(loader) for loader in self.loaders]

    def states(self) -> list[Any]:
        return [store_and_read(position.state_dict()) for position in self.positions]

    def load(self, states: list[Any]) -> None:
        for rank, position in enumerate(self.positions):
            position.load_state_dict(states[rank % len(states)])

    def give(self, epoch: int | None, batches: int | None = None) -> list[int]:
        """What all ranks together are given of an epoch, in the order of steps."""
        if epoch is not None:
            for sampler in self.samplers:
                sampler.set_epoch(epoch)
        iterators = [iter(loader) for loader in self.loaders]
        seen: list[int] = []
        steps = 0
        while batches is None or steps < batches:
            given_out = [batch for iterator in iterators for batch in islice(iterator, 1)]
            if not given_out:
                break
            assert len(given_out) == len(self.loaders)
            seen += [number for batch in given_out for number in batch.reshape(-1).tolist()]
            steps += 1
        return seen


def order_of(length: int, epoch: int, shuffle: bool = True) -> list[int]:
    sampler = DistributedSampler(Numbers(length), 1, 0, seed=3, shuffle=shuffle)
    sampler.set_epoch(epoch)
    return list(sampler)


@settings(max_examples=150)
@given(
    length=st.integers(1, 40),
    worlds=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    batch_size=st.sampled_from([None, 1, 2, 3]),
    batches=st.integers(0, 4),
    epoch=st.integers(0, 3),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_every_sample_comes_once_on_any_numbers_of_ranks(
    length: int,
    worlds: list[int],
    batch_size: int | None,
    batches: int,
    epoch: int,
    shuffle: bool,
    drop_last: bool,
) -> None:
    options = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last}
    group = Ranks(worlds[0], length, **options)
    seen = group.give(epoch, batches)
    for ranks in worlds[1:]:
        states = group.states()
        if states[0]["epoch"] is None:
            break
        group = Ranks(ranks, length, **options)
        group.load(states)
        seen += group.give(epoch, batches)
    ranks = len(group.loaders)
    if group.states()[0]["epoch"] is not None:
        states = group.states()
        group = Ranks(ranks, length, **options)
        group.load(states)
        seen += group.give(epoch)
    assert all(state["epoch"] is None for state in group.states())
    if drop_last:
        assert len(set(seen)) == len(seen)
        assert len(seen) > length - max(worlds)
    else:
        assert set(seen) == set(range(length))
        assert len(seen) < length + max(worlds)
    # A new epoch is whole again, and as torch deals it.
    plain = Ranks(ranks, length, **options)
    assert group.give(epoch + 1) == plain.give(epoch + 1)


def test_the_rest_comes_in_the_order_of_the_epoch() -> None:
    three = Ranks(3, 40)
    first = three.give(5, batches=2)
    two = Ranks(2, 40)
    two.load(three.states())
    order = order_of(40, 5)
    assert sorted(first) == sorted(order[:12])
    second = two.give(5, batches=3)
    assert sorted(second) == sorted(order[12:24])
    four = Ranks(4, 40)
    four.load(two.states())
    assert sorted(four.give(5)) == sorted(order[24:])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [1, 3, 8, 13])
def test_all_of_an_epoch_is_dealt_as_torch_does(ranks: int, length: int, drop_last: bool) -> None:
    for rank in range(ranks):
        sampler = DistributedSampler(Numbers(length), ranks, rank, seed=1, drop_last=drop_last)
        sampler.set_epoch(2)
        whole = list(sampler)
        assert deal_rest(sampler, 0) == whole
        for steps in range(len(whole) + 1):
            assert deal_rest(sampler, steps * ranks) == whole[steps:]


def test_a_loop_that_sets_no_epoch_goes_on_in_the_one_that_was_left() -> None:
    before = Ranks(2, 12)
    first = before.give(7, batches=1)
    after = Ranks(2, 12)
    after.load(before.states())
    assert sorted(first + after.give(None)) == list(range(12))
    assert after.samplers[0].epoch == 7


def test_a_loop_that_sets_another_epoch_has_moved_on() -> None:
    before = Ranks(1, 12)
    before.give(4, batches=2)
    after = Ranks(1, 12)
    after.load(before.states())
    with pytest.warns(CheckpointWarning, match="saved in epoch 4 of the sampler.*set to epoch 5"):
        assert after.give(5, batches=3) == order_of(12, 5)[:6]
    again = Ranks(1, 12)
    again.load(after.states())
    assert again.give(5) == order_of(12, 5)[6:]


def test_an_epoch_that_was_given_out_gives_nothing_and_the_next_is_whole() -> None:
    before = Ranks(2, 8)
    before.give(1, batches=2)
    after = Ranks(4, 8)
    after.load(before.states())
    assert after.give(1) == []
    assert sorted(after.give(2)) == list(range(8))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": 4}, "half way with sampler.seed 3, and this loader has 4: give the loader"),
        ({"shuffle": False}, "sampler.shuffle True, and this loader has False"),
        ({"length": 11}, "dataset length 12, and this loader has 11"),
    ],
)
def test_another_order_of_ranks_is_refused(changed: dict[str, Any], said: str) -> None:
    before = Ranks(2, 12)
    before.give(0, batches=1)
    after = Ranks(2, **({"length": 12} | changed))
    with pytest.raises(InvalidArgument, match=said):
        after.load(before.states())
    # Nothing is left to continue of an epoch that is over: then anything may change.
    before.give(0)
    after.load(before.states())
    assert len(after.give(1)) == 12


class Pairs:
    """A batch sampler that is no BatchSampler: what it does with ranks is its own affair."""

    def __init__(self, sampler: DistributedSampler[Any]) -> None:
        self.sampler = sampler

    def __iter__(self) -> Any:
        numbers = iter(self.sampler)
        return iter(list(zip(numbers, numbers, strict=False)))


def test_batches_of_the_users_own_stay_with_their_number_of_ranks() -> None:
    def make(ranks: int) -> DataLoader[Any]:
        data = Numbers(16)
        return DataLoader(data, batch_sampler=Pairs(DistributedSampler(data, ranks, 0)))

    loader = make(2)
    position = follow_loader(loader)
    first = next(iter(loader)).tolist()
    state = store_and_read(position.state_dict())
    with pytest.raises(InvalidArgument, match=r"sampler.sampler.num_replicas 2, .* has 4"):
        follow_loader(make(4)).load_state_dict(state)
    loader = make(2)
    follow_loader(loader).load_state_dict(state)
    rest = [number for batch in loader for number in batch.tolist()]
    assert first + rest == list(DistributedSampler(Numbers(16), 2, 0))
