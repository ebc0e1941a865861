"""Following a data loader, so that every sample of an epoch comes once, also across interruptions.

The user goes on writing `for batch in loader`. What counts is what this loop has been given, not
what workers have prepared. After a resume, the first `iter(loader)` gives the rest of the epoch, or
nothing if all of it had been given; the next one is a new epoch.
"""

import types
from collections.abc import Iterator
from functools import cache
from typing import Any, SupportsIndex

from torch.utils.data import DataLoader, IterableDataset

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint.positions import OrderPosition, Position, StreamPosition
from elbowroom.store.checkpoint.sources import Stateful
from elbowroom.store.checkpoint.streams import forgets_buffer, loader_below
from elbowroom.store.checkpoint.voice import tell

_PLACE = "_elbowroom_position"


def follow_loader(loader: Any) -> Stateful:
    """Return what knows the loader's position, and can bring it back there.

    A loader with a state of its own, as torchdata's StatefulDataLoader, is returned as it is. A
    DataLoader stays what it is, and counts from now on. Resumed, it gives the same batches as if
    nothing had happened, and leaves every generator as if nothing had happened; only what workers
    draw by chance for themselves is drawn anew.

    - Positions are counted in samples: the batch size and the number of workers may change. With a
      batch sampler of the user's own they are counted in its batches.
    - A sampler of the user's own is asked for its order again: whatever this depends on must be
      in global generators, in generators or an `epoch` that it holds, or in its state_dict.
    - With DistributedSampler the number of ranks may change: the rest of the epoch is dealt out
      among those that are there. If the loop has set another epoch than the one that was left, it
      has moved on, and a new epoch begins, with a warning.
    - An IterableDataset without workers is asked for its state, if it has state_dict. In any other
      case, the batches that were delivered are loaded again and dropped, which takes its time.
    - Hugging Face's streams that shuffle in a buffer are read again as well: their state leaves
      the buffer out. Of webdataset's WebLoader the DataLoader in it is followed.
    - A loop left by `break` counts as interrupted until the next one begins.
    """
    if isinstance(loader, type):
        raise InvalidArgument(
            f"loader= must be a loader, and {loader.__name__} is a class: call it"
        )
    base = getattr(loader, "base_dataloader", None)
    if isinstance(base, DataLoader) and not isinstance(base, Stateful):
        raise InvalidArgument(
            f"loader= is accelerate's {type(loader).__name__}, which looks one batch ahead of what "
            "it gives: prepare it with use_stateful_dataloader=True, or give a plain DataLoader"
        )
    loader = loader_below(loader)
    if isinstance(loader, Stateful):
        if forgets_buffer(getattr(loader, "dataset", None)):
            raise InvalidArgument(
                f"loader= is a {type(loader).__name__} over a dataset that shuffles in a buffer, "
                "which the dataset's state leaves out, so that samples would be lost: give a plain "
                "DataLoader, which is read again up to its place"
            )
        return loader
    if not issubclass(type(loader), DataLoader):
        raise InvalidArgument(
            f"loader= must be a DataLoader or have state_dict and load_state_dict, and "
            f"{type(loader).__name__} is neither: give the DataLoader below it, or keep its "
            "position in an object of your own"
        )
    if not loader.in_order:
        raise InvalidArgument(
            "loader= has in_order=False, so that nobody knows which samples have been delivered: "
            "leave in_order=False out"
        )
    if _PLACE not in vars(loader):
        _follow(loader)
    return vars(loader)[_PLACE]


def _follow(loader: DataLoader[Any]) -> None:
    is_stream = isinstance(loader.dataset, IterableDataset)
    if is_stream and forgets_buffer(loader.dataset) and loader.num_workers == 0:
        tell(
            "loader= shuffles in a buffer, which the dataset's state leaves out: after an "
            "interruption it is read again up to its place"
        )
    vars(loader)[_PLACE] = (StreamPosition if is_stream else OrderPosition)(loader)
    if not isinstance(loader, _Followed):
        loader.__class__ = _followed(type(loader))
    if loader._iterator is not None:
        # Workers that are there already take their indices from what the loader had before.
        loader._iterator._index_sampler = loader._index_sampler


@cache
def _followed(kind: type[DataLoader[Any]]) -> type[DataLoader[Any]]:
    """The same kind of loader, followed; under the same name, since it is what users have made."""
    made = types.new_class(kind.__name__, (_Followed, kind))
    made.__module__, made.__qualname__, made.__doc__ = (
        kind.__module__,
        kind.__qualname__,
        kind.__doc__,
    )
    return made


class _Followed(DataLoader[Any]):
    """What is special about a loader with a position; one that was made from its type has none."""

    def __iter__(self) -> Any:
        position = _position_of(self)
        if position is None:
            return super().__iter__()
        return _Deliveries(position.begin(self, super().__iter__), position)

    def _get_iterator(self) -> Any:
        position = _position_of(self)
        make = super()._get_iterator
        return make() if position is None else position.build(self, make)

    @property
    def _index_sampler(self) -> Any:
        position, plain = _position_of(self), super()._index_sampler
        if position is None or isinstance(self.dataset, IterableDataset):
            return plain
        return position.watch(plain)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        # A copy is a loader that nobody follows, of the class that is found by its name.
        kind = type(self).__bases__[1]
        plain = object.__new__(kind)
        vars(plain).update({name: value for name, value in vars(self).items() if name != _PLACE})
        _, arguments, *rest = plain.__reduce_ex__(protocol)
        return object.__new__, arguments, *rest


class _Deliveries(Iterator[Any]):
    """A loader's iterator that tells the position what it has given."""

    def __init__(self, inner: Iterator[Any], position: Position) -> None:
        self._inner = inner
        self._position = position

    def __next__(self) -> Any:
        try:
            batch = next(self._inner)
        except StopIteration:
            self._position.end(self._inner)
            raise
        except Exception:
            self._position.fail(self._inner)
            raise
        self._position.count(self._inner)
        return batch

    def __len__(self) -> int:
        return len(self._inner)  # pyright: ignore[reportArgumentType]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _position_of(loader: DataLoader[Any]) -> Position | None:
    return vars(loader).get(_PLACE)
