"""A followed loader is the loader it was, whatever a loop does with it."""

import copy
import gc
import pickle
import weakref
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from elbowroom.store.checkpoint import Checkpointer
from elbowroom.store.checkpoint.loading import follow_loader

from .test_loading import (
    Endless,
    Loader,
    Noisy,
    Numbers,
    generator,
    load,
    numbers_of,
    seed,
    store_and_read,
    taken_up,
    train,
)


def test_what_was_delivered_is_not_loaded_again() -> None:
    first = load(Numbers(12))
    position = follow_loader(first)
    assert numbers_of(first, 2) == list(range(6))
    dataset = Numbers(12)
    loader = load(dataset)
    taken_up(position, loader)
    assert numbers_of(loader) == dataset.asked == list(range(6, 12))


class Doubled(DataLoader[Any]):
    """A user's own kind of loader."""

    def __iter__(self) -> Any:
        return (2 * batch for batch in super().__iter__())


@pytest.mark.parametrize("kind", [DataLoader, Doubled])
def test_the_loader_stays_what_it_is(kind: type[Loader]) -> None:
    loader = kind(Numbers(10), 3)
    position = follow_loader(loader)
    assert isinstance(loader, kind)
    assert type(loader).__name__ == kind.__name__
    assert len(loader) == 4
    assert type(loader.batch_sampler) is BatchSampler
    assert type(loader.sampler) is SequentialSampler
    with pytest.raises(ValueError, match=f"should not be set after {kind.__name__} is initialized"):
        loader.batch_size = 4
    factor = 1 if kind is DataLoader else 2
    assert numbers_of(loader, 2) == [factor * number for number in range(6)]
    again = kind(Numbers(10), 3)
    taken_up(position, again)
    assert numbers_of(again) == [factor * number for number in range(6, 10)]


def test_an_iterator_is_like_that_of_torch() -> None:
    loader = load(Numbers(10))
    follow_loader(loader)
    batches: Any = iter(loader)
    next(batches)
    assert iter(batches) is batches
    assert len(batches) == 4
    assert batches._num_yielded == 1
    with pytest.raises(AttributeError):
        _ = batches.nothing


def test_a_copy_is_a_plain_loader() -> None:
    loader = load(Numbers(10))
    position = follow_loader(loader)
    numbers_of(loader, 2)
    for other in (
        copy.copy(loader),
        copy.deepcopy(loader),
        pickle.loads(pickle.dumps(loader)),
    ):
        assert type(other) is DataLoader
        assert numbers_of(other) == list(range(10))
        assert follow_loader(other) is not position
    assert position.state_dict()["epoch"]["delivered"] == 6


def test_a_loader_made_from_the_type_of_another_is_a_plain_one() -> None:
    loader = load(Numbers(10))
    position = follow_loader(loader)
    other = type(loader)(Numbers(10), 3)
    assert numbers_of(other) == list(range(10))
    assert len(other) == 4
    assert position.state_dict()["epoch"] is None
    theirs = follow_loader(other)
    assert theirs is not position
    numbers_of(other, 2)
    again = copy.copy(other)
    assert type(again) is DataLoader
    taken_up(theirs, again)
    assert numbers_of(again) == list(range(6, 10))


def test_following_twice_is_following_once() -> None:
    loader = load(Numbers(10))
    position = follow_loader(loader)
    kind = type(loader)
    assert follow_loader(loader) is position
    assert type(loader) is kind
    numbers_of(loader, 1)
    assert position.state_dict()["epoch"]["delivered"] == 3


def test_two_loaders_do_not_know_of_each_other() -> None:
    def make() -> tuple[Loader, Loader]:
        return load(Numbers(9), shuffle=True), load(Numbers(20), batch_size=2)

    torch.manual_seed(3)
    loaders = make()
    positions = [follow_loader(loader) for loader in loaders]
    seen = [numbers_of(loaders[0], 1), numbers_of(loaders[1], 4)]
    others = make()
    for position, other in zip(positions, others, strict=True):
        taken_up(position, other)
    assert sorted(seen[0] + numbers_of(others[0])) == list(range(9))
    assert seen[1] + numbers_of(others[1]) == list(range(20))


def test_of_nested_iterations_the_last_counts() -> None:
    loader = load(Numbers(12))
    position = follow_loader(loader)
    first, second = iter(loader), iter(loader)
    for _ in range(3):
        next(first)
    next(second)
    assert position.state_dict()["epoch"]["delivered"] == 3
    assert len(list(first)) == 1
    assert position.state_dict()["epoch"]["delivered"] == 3
    list(second)
    assert position.state_dict()["epoch"] is None


def test_a_loop_that_was_left_is_continued_unless_another_begins() -> None:
    loader = load(Numbers(12))
    position = follow_loader(loader)
    numbers_of(loader, 2)
    again = load(Numbers(12))
    taken_up(position, again)
    assert numbers_of(again) == list(range(6, 12))
    assert numbers_of(loader, 1) == [0, 1, 2]
    again = load(Numbers(12))
    later = taken_up(position, again)
    assert numbers_of(again, 1) == [3, 4, 5]
    assert numbers_of(again, 1) == [0, 1, 2]
    assert later.state_dict()["epoch"]["delivered"] == 3


def test_going_back_in_a_running_process() -> None:
    loader = load(Numbers(12), num_workers=2, persistent_workers=True)
    position = follow_loader(loader)
    batches = iter(loader)
    next(batches)
    state = store_and_read(position.state_dict())
    next(batches)
    position.load_state_dict(state)
    next(batches)  # no longer counted
    assert position.state_dict()["epoch"]["delivered"] == 3
    assert numbers_of(loader) == list(range(3, 12))
    assert numbers_of(loader) == list(range(12))


class Broken(Numbers):
    """Cannot give some of its samples."""

    def __getitem__(self, index: int) -> Tensor:
        if index == 4:
            raise LookupError("no such sample")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_fails_is_tried_again_or_passed(workers: int) -> None:
    loader = load(Broken(12), num_workers=workers)
    position = follow_loader(loader)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1, 2]
    with pytest.raises(LookupError):
        next(batches)
    mended = load(Numbers(12))
    taken_up(position, mended)
    assert numbers_of(mended) == list(range(3, 12))
    assert next(batches).tolist() == [6, 7, 8]
    mended = load(Numbers(12))
    taken_up(position, mended)
    assert numbers_of(mended) == list(range(9, 12))
    # To the end, which ends the workers: the error holds on to them.
    assert len(list(batches)) == 1


def test_nothing_lives_longer_than_it_would() -> None:
    gc.disable()
    try:
        loader = load(Numbers(12), num_workers=2, persistent_workers=True)
        position = follow_loader(loader)
        batches: Any = iter(loader)
        next(batches)
        workers = batches._workers
        gone = weakref.ref(loader)
        del batches, loader
        assert gone() is None
        assert not any(worker.is_alive() for worker in workers)
        assert position.state_dict()["epoch"]["delivered"] == 3
        other = load(Numbers(12), num_workers=2)
        follow_loader(other)
        for batch in other:
            assert batch.tolist() == [0, 1, 2]
            break
        batches: Any = iter(other)
        workers = batches._workers
        del batches
        assert not any(worker.is_alive() for worker in workers)
    finally:
        gc.enable()


def test_workers_that_were_there_before_are_followed() -> None:
    loader = load(Numbers(12), num_workers=1, persistent_workers=True)
    assert numbers_of(loader) == list(range(12))
    position = follow_loader(loader)
    assert numbers_of(loader, 2) == list(range(6))
    assert position.state_dict()["epoch"]["delivered"] == 6


@pytest.mark.slow
def test_workers_that_are_spawned() -> None:
    def make(context: str) -> Loader:
        return DataLoader(
            list(range(12)),  # pyright: ignore[reportArgumentType]
            batch_size=3,
            shuffle=True,
            num_workers=1,
            persistent_workers=True,
            multiprocessing_context=context,
        )

    assert train(lambda: make("spawn"), stops=[2]) == train(lambda: make("fork"))


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0)])
def test_the_number_of_workers_may_change(before: int, after: int) -> None:
    workers = iter([before, after])

    def make() -> Loader:
        return load(Numbers(30), sampler=Endless(30), num_workers=next(workers))

    seen = train(make, epochs=1, stops=[3])
    workers = iter([before])
    assert seen == train(make, epochs=1)


def test_workers_augment_alike_from_the_next_epoch_on() -> None:
    def make() -> Loader:
        return load(Noisy(12), shuffle=True, num_workers=2)

    plain = train(make, epochs=3)
    resumed = train(make, 3, [2])
    first = [[sample[0] for sample in batch] for batch, _ in plain[:4]]
    assert [[sample[0] for sample in batch] for batch, _ in resumed[:4]] == first
    assert resumed[5:] == plain[5:]


def test_a_generator_that_others_draw_from_as_well() -> None:
    def give(stop: int, workers: int) -> list[Any]:
        seen: list[Any] = []
        state = None
        for end in (stop, 99):
            shared = generator()
            loader = load(Numbers(12), shuffle=True, generator=shared, num_workers=workers)
            position = follow_loader(loader)
            if state is not None:
                position.load_state_dict(state)
            for batch in loader:
                seen.append((batch.tolist(), torch.rand((), generator=shared).item()))
                if len(seen) == end:
                    break
            state = store_and_read(position.state_dict())
        return seen

    for workers in (0, 2):
        assert give(2, workers) == give(3, workers)


def test_a_position_taken_up_before_anything_was_loaded() -> None:
    torch.manual_seed(0)
    loader = load(Numbers(12), sampler=RandomSampler(Numbers(12)), batch_size=None)
    position = follow_loader(loader)
    batches = iter(loader)
    state = store_and_read(position.state_dict())
    drawn_from = torch.get_rng_state()
    plain = [int(number) for number in batches]
    torch.set_rng_state(drawn_from)
    seen: list[int] = []
    for count in (0, 2, 5, 99):
        loader = load(Numbers(12), sampler=RandomSampler(Numbers(12)), batch_size=None)
        position = follow_loader(loader)
        position.load_state_dict(state)
        batches = iter(loader)
        seen += [int(number) for number in islice(batches, count)]
        state = store_and_read(position.state_dict())
    assert seen == plain


def test_a_checkpointer_brings_the_loader_back(tmp_path: Path) -> None:
    def give(where: Path, stops: list[int]) -> list[Any]:
        seen: list[Any] = []
        for life, stop in enumerate([*stops, 8]):
            seed(life)
            loader = load(Noisy(20), batch_size=5, shuffle=True)
            with Checkpointer(where, loader=loader, every=1, handle_signals=False) as checkpointer:
                del seen[checkpointer.steps :]
                while len(seen) < stop:
                    for batch in loader:
                        seen.append(batch.tolist())
                        checkpointer.step()
                        checkpointer.wait()
                        if len(seen) == stop:
                            break
        return seen

    assert give(tmp_path / "one", [1, 4, 6]) == give(tmp_path / "two", [])


def test_every_loader_that_is_given_by_a_name_is_followed(tmp_path: Path) -> None:
    def run(stop: int, where: Path) -> list[list[int]]:
        seed(1)
        plain = DataLoader(Numbers(12), 2, shuffle=True)
        other = DataLoader(Numbers(30), 3, shuffle=True, generator=generator())
        found: list[list[int]] = []
        with Checkpointer(where, loader=plain, other=other, every=1) as checkpointer:
            for x, y in zip(plain, other, strict=False):
                found.append([*x.tolist(), *y.tolist()])
                checkpointer.step()
                if checkpointer.steps == stop:
                    break
        return found

    whole = run(6, tmp_path / "whole")
    assert run(2, tmp_path / "parts") + run(6, tmp_path / "parts") == whole
