"""Checkpoints for Lightning's Trainer, as a callback.

    checkpoints = CheckpointCallback("run1")
    trainer = Trainer(callbacks=[checkpoints])
    trainer.fit(module, loader, ckpt_path=checkpoints.last())

What is saved is the Trainer's own checkpoint, as it would write it to a file, and what it leaves
out: random numbers, and where the loaders stand. It goes back by the Trainer's own way.
"""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elbowroom.errors import InvalidArgument
from elbowroom.integrations.lightning import Callback
from elbowroom.integrations.lightning_loaders import Loaders
from elbowroom.integrations.lightning_parts import Parts
from elbowroom.store.checkpoint import Checkpointer, CheckpointWarning, Store
from elbowroom.store.checkpoint.sources import read_randomness, set_randomness

_OWN_NAMES = ("model", "optimizer", "scheduler", "loader", "trainer")
_MISSING = "the checkpoint has no (model|optimizer|trainer):"


class CheckpointCallback(Callback):
    """Saves the training every few steps, and lets the Trainer go on where it was.

    It saves between two batches, when the optimizer has stepped and no validation follows, and
    between two epochs. Resumed, a run has the losses of one that nothing has interrupted, bit for
    bit. When SIGTERM ends the training, that is saved as well.

    Args:
        where: The folder of checkpoints.
        options: Arguments of `elbowroom.Checkpointer`, such as max_overhead, every and keep, and
            further objects to be saved. Those of the Trainer are the Trainer's.
    """

    def __init__(self, where: str | Path, **options: Any) -> None:
        taken = [name for name in _OWN_NAMES if name in options]
        if taken:
            raise InvalidArgument(
                f"{taken[0]}= comes from the Trainer: leave it out, or name your object otherwise"
            )
        if options.pop("handle_signals", False):
            raise InvalidArgument(
                "handle_signals=True is for loops of one's own, and the Trainer sees to SIGTERM: "
                "leave it out"
            )
        self.checkpointer: Checkpointer | None = None
        """While training runs."""

        self._where = where
        self._is_resumed_by_default = bool(options.pop("resume", True))
        self._options = options
        self._parts: Parts | None = None
        self._loaders: Loaders | None = None
        self._progress: Mapping[str, int] | None = None
        self._is_whole = False
        self._undo: list[Callable[[], None]] = []

    def last(self) -> str | None:
        """What to give to `fit(ckpt_path=)`, or None where there is nothing yet."""
        far = self._options.get("far")
        places = (self._where, *(() if far is None else (far,)))
        has_any = self._is_resumed_by_default and any(map(_has_checkpoints, places))
        return str(self._where) if has_any else None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Let the Trainer read from the store, and if it is to train, write there."""
        self._end()
        if trainer.strategy.restore_checkpoint_after_setup:
            raise InvalidArgument(
                "CheckpointCallback is for models that are whole on every rank: save sharded ones "
                "with elbowroom.store.checkpoint.dcp"
            )
        # Other callbacks change what is saved. The list is being gone through, and is left alone.
        trainer.callbacks = [*(c for c in trainer.callbacks if c is not self), self]
        self._parts = Parts(trainer)
        strategy, below = trainer.strategy, trainer.strategy.checkpoint_io
        strategy.checkpoint_io = _StoreIO(below, str(self._where), self._load)
        self._undo.append(lambda: setattr(strategy, "checkpoint_io", below))
        if stage == "fit":
            self.checkpointer = self._open(self._parts)
            self._loaders = Loaders(trainer)
            self._undo.append(self._loaders.release)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse to begin anew where there is something to go on from."""
        ck = self.checkpointer
        if ck is None or ck.resumed_from is not None or not self._is_resumed_by_default:
            return
        if names := Store.open(self._where).names():
            raise InvalidArgument(
                f"{self._where} has a checkpoint of step {names[-1].step}: fit with "
                "ckpt_path=checkpoints.last(), or name another folder"
            )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Everything is where it was: what follows are steps like others."""
        if self._loaders is not None:
            self._loaders.begin()
        if self._progress is not None:
            fit = trainer.fit_loop
            if self._progress["started"] == self._progress["completed"]:
                # With a number of steps to make, the Trainer would take it for half an epoch.
                fit.epoch_loop.restarting = False
            # Else it would not tell metrics to schedulers when the epoch ends.
            fit._restarting = False
            self._progress = None

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save, if it is time and the Trainer could go on from here."""
        ck = self.checkpointer
        if ck is not None:
            # In between, gradients are being summed up, and are not part of any checkpoint.
            self._is_whole = not trainer.fit_loop._should_accumulate()
            if self._is_whole and trainer.global_step > ck.steps and _is_quiet(trainer):
                self._step(trainer, ck)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Save the end of the epoch before, now that all of it is done."""
        ck = self.checkpointer
        if ck is not None and trainer.global_step > ck.steps:
            self._step(trainer, ck)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the end."""
        self._finish(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Save what SIGTERM has ended, which is between two batches; let go of everything."""
        ck = self.checkpointer
        is_asked = isinstance(exception, SystemExit) and trainer.received_sigterm
        # Of several ranks, others may have come less far.
        if is_asked and self._is_whole and trainer.training and trainer.world_size == 1:
            self._finish(trainer)
        elif ck is not None:
            ck.__exit__(type(exception), exception, exception.__traceback__)
        self._end()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the Trainer as it was."""
        self._end()

    def _open(self, parts: Parts, **options: Any) -> Checkpointer:
        given: dict[str, Any] = {**self._options, **parts.sources, "resume": False, **options}
        return Checkpointer(self._where, handle_signals=False, **given)

    def _load(self) -> dict[str, Any]:
        """The Trainer's checkpoint out of the newest that is whole."""
        assert self._parts is not None
        before = read_randomness()
        with warnings.catch_warnings():
            # That all of it is missing is an error, and told below.
            warnings.filterwarnings("ignore", _MISSING, CheckpointWarning)
            if self.checkpointer is not None:
                self.checkpointer.restore()
            else:
                self._open(self._parts, resume=True).close(save=False)
        checkpoint = self._parts.join(self._where)
        if self._loaders is None:
            set_randomness(before)
            return checkpoint
        self._loaders.take_up(checkpoint, read_randomness())
        self._progress = checkpoint["loops"]["fit_loop"]["epoch_progress"]["total"]
        return checkpoint

    def _step(self, trainer: Any, ck: Checkpointer) -> None:
        # The Trainer counts steps itself, and not all of them are told here.
        ck._steps = trainer.global_step - 1
        ck.step()

    def _finish(self, trainer: Any) -> None:
        ck = self.checkpointer
        if ck is not None:
            if trainer.global_step > ck.steps:
                self._step(trainer, ck)
            ck.close()

    def _end(self) -> None:
        if self.checkpointer is not None:
            self.checkpointer.close(save=False)
        while self._undo:
            self._undo.pop()()
        self.checkpointer = self._parts = self._loaders = self._progress = None
        self._is_whole = False


class _StoreIO:
    """What a strategy reads and writes files with, where one of the names is that of a store."""

    def __init__(self, below: Any, where: str, load: Callable[[], dict[str, Any]]) -> None:
        self._below, self._where, self._load = below, where, load

    def load_checkpoint(self, path: str | Path, *args: Any, **given: Any) -> Mapping[str, Any]:
        """From the store, or from a file."""
        is_store = str(path) == self._where
        return self._load() if is_store else self._below.load_checkpoint(path, *args, **given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


def _has_checkpoints(where: str | Path) -> bool:
    try:
        return bool(Store.open(where).names())
    except InvalidArgument:
        return False


def _is_quiet(trainer: Any) -> bool:
    """Whether the next batch follows at once: what else does, the Trainer would leave out."""
    fit, configs = trainer.fit_loop, trainer.lr_scheduler_configs
    if trainer.is_last_batch or fit.epoch_loop._should_check_val_fx(fit._data_fetcher):
        return False
    return not any(config.reduce_on_plateau and config.interval == "step" for config in configs)
