"""What a position cannot be told of, or cannot be brought back to, is refused in a sentence."""

from typing import Any

import pytest
from torch.utils.data import DataLoader, RandomSampler

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint.loading import follow_loader

from .test_loading import Endless, Loader, Numbers, generator, load, numbers_of, taken_up
from .test_loading_streams import Keeper


class Owner:
    """A loader that knows its own position."""

    def __iter__(self) -> Any:
        return iter(())

    def state_dict(self) -> dict[str, int]:
        return {"at": 3}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == {"at": 3}


class Adapter(Owner):
    """What accelerate makes of a loader."""

    def __init__(self, base: Any) -> None:
        self.base_dataloader = base


def test_a_loader_with_a_state_is_used_as_it_is() -> None:
    for loader in (Owner(), Adapter(Owner())):
        assert follow_loader(loader) is loader


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (
            [1, 2],
            "must be a DataLoader or have state_dict and load_state_dict, and list is neither",
        ),
        (DataLoader, "must be a loader, and DataLoader is a class: call it"),
        (DataLoader(Numbers(3), num_workers=1, in_order=False), "leave in_order=False out"),
        (Adapter(DataLoader(Numbers(3))), "prepare it with use_stateful_dataloader=True"),
    ],
    ids=["neither", "class", "out of order", "accelerate"],
)
def test_what_cannot_be_followed_is_refused(loader: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        follow_loader(loader)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset": Numbers(11)}, "dataset length 12, and this loader has 11: give the loader"),
        ({"shuffle": False}, "sampler 'RandomSampler', and this loader has 'SequentialSampler'"),
        (
            {"generator": generator()},
            r"generators \[\], .* has \['generator', 'sampler.generator'\]",
        ),
        (
            {"shuffle": False, "sampler": RandomSampler(Numbers(12), True)},
            "sampler.replacement False, and this loader has True",
        ),
        (
            {"shuffle": False, "sampler": RandomSampler(Numbers(12), num_samples=8)},
            "sampler length 12, and this loader has 8",
        ),
    ],
)
def test_another_order_is_refused_half_way(options: dict[str, Any], said: str) -> None:
    def make(**changed: Any) -> Loader:
        changed.setdefault("shuffle", True)
        return load(changed.pop("dataset", Numbers(12)), **changed)

    loader = make()
    position = follow_loader(loader)
    numbers_of(loader, 2)
    with pytest.raises(InvalidArgument, match=said):
        taken_up(position, make(**options))
    # Between two epochs there is nothing to continue.
    numbers_of(loader)
    other = make(**options)
    taken_up(position, other)
    assert len(numbers_of(other)) == len(other.sampler)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dataset", [Numbers(12), Keeper(12)])
def test_ranks_that_torch_knows_nothing_of_are_refused_half_way(
    dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = load(dataset)
    position = follow_loader(loader)
    numbers_of(loader, 2)
    state = position.state_dict()
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    with pytest.raises(InvalidArgument, match="number of ranks 1, and this loader has 4: give"):
        follow_loader(load(dataset)).load_state_dict(state)


def test_states_that_are_none_of_ours_are_refused() -> None:
    loader = load(Numbers(12))
    position = follow_loader(loader)
    for state in ({"at": 3}, None, 3):
        with pytest.raises(InvalidArgument, match="saved with another kind of loader"):
            position.load_state_dict(state)
    numbers_of(loader, 2)
    for delivered, drawn in ((-1, 4), (5, 4), ("5", 6), (True, 6)):
        state = position.state_dict()
        state["epoch"] |= {"delivered": delivered, "drawn": drawn}
        with pytest.raises(InvalidArgument, match="which cannot be"):
            position.load_state_dict(state)


class Shrinking(Endless):
    """Does not tell how many indices it has."""

    __len__ = None  # pyright: ignore[reportAssignmentType]

    def __iter__(self) -> Any:
        return iter(range(self.length))


def test_a_sampler_that_ends_too_early_is_refused() -> None:
    loader = load(Numbers(12), sampler=Shrinking(9))
    position = follow_loader(loader)
    numbers_of(loader, 3)
    other = load(Numbers(12), sampler=Shrinking(5))
    taken_up(position, other)
    with pytest.raises(InvalidArgument, match=r"left after 9 steps of Shrinking, .* ends after 5"):
        numbers_of(other)
