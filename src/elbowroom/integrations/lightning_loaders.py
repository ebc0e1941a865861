"""Where the loaders of Lightning's Trainer stand, told and set when the Trainer asks for it."""

from collections.abc import Iterator, Mapping
from typing import Any

from elbowroom.store.checkpoint.loading import follow_loader
from elbowroom.store.checkpoint.sources import Stateful, set_randomness


class Loaders:
    """Gives every loader that the Trainer trains from a position, as part of its checkpoint."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._positions: list[Any] = []
        self._randomness: Mapping[str, Any] | None = None
        self._followed: list[tuple[Any, type]] = []
        # The one place at which loaders are as they will be used, and not yet begun.
        below = trainer.strategy.process_dataloader
        trainer.strategy.process_dataloader = lambda loader: self._process(below(loader))

    def take_up(self, checkpoint: Mapping[str, Any], randomness: Mapping[str, Any]) -> None:
        """Go on from there with the loaders that come next."""
        told = checkpoint["loops"]["fit_loop"]["state_dict"]
        self._positions = list(told.get("combined_loader", ()))
        self._randomness = randomness

    def begin(self) -> None:
        """All loaders have come."""
        self._positions, self._randomness = [], None

    def release(self) -> None:
        """Leave the Trainer and the loaders as they were; that these count does no harm."""
        vars(self._trainer.strategy).pop("process_dataloader", None)
        while self._followed:
            loader, kind = self._followed.pop()
            loader.__class__ = kind
            for name in ("state_dict", "load_state_dict"):
                vars(loader).pop(name, None)

    def _process(self, loader: Any) -> Any:
        if self._trainer.training:
            if not isinstance(loader, Stateful):
                self._follow(loader)
            if self._positions:
                # Between epochs the Trainer would leave this out, and with it the generators.
                loader.load_state_dict(self._positions.pop(0))
            if self._randomness is not None:
                set_randomness(self._randomness)
        return loader

    def _follow(self, loader: Any) -> None:
        position = follow_loader(loader)
        self._followed.append((loader, type(loader)))
        read = position.state_dict
        if not _has_length(loader):
            read = _lag_behind(loader, position)

        def state_dict() -> dict[str, Any]:
            # The Trainer leaves a loader before it says that it has no more.
            epoch = self._trainer.fit_loop.epoch_progress.total
            is_over = self._trainer.is_last_batch or epoch.started == epoch.completed
            return {**read(), "epoch": None} if is_over else read()

        vars(loader).update(state_dict=state_dict, load_state_dict=position.load_state_dict)


class _Noting(Iterator[Any]):
    """Notes where a loader stands before each batch.

    Where no length is known, the Trainer is one batch ahead of the training, so as to know the
    last one when it comes.
    """

    def __init__(self, inner: Iterator[Any], position: Stateful, noted: list[Any]) -> None:
        self._inner, self._position, self._noted = inner, position, noted

    def __next__(self) -> Any:
        self._noted[:] = [self._position.state_dict()]
        return next(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _lag_behind(loader: Any, position: Stateful) -> Any:
    kind: Any = type(loader)
    noted = [position.state_dict()]
    names = {"__iter__": lambda me: _Noting(super(made, me).__iter__(), position, noted)}
    made = type(kind.__name__, (kind,), names)
    loader.__class__ = made
    return lambda: noted[0]


def _has_length(loader: Any) -> bool:
    try:
        len(loader)
    except (TypeError, NotImplementedError):
        return False
    return True
