"""A room for Lightning's Trainer, as a callback.

    trainer = Trainer(callbacks=[ActivationsCallback(tolerance=0.1)])

Every training step is a pass, its loss included, and the ledger's totals are logged beside what the
module logs itself.
"""

import functools
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch.nn.modules.module import register_module_forward_pre_hook

from elbowroom.errors import BackendUnavailable
from elbowroom.integrations.trackers import totals
from elbowroom.keep import Activations
from elbowroom.keep.activations import Ledger
from elbowroom.keep.activations.hooks import top_hooks
from elbowroom.keep.activations.passes import Pass


def _find_callback() -> Any:
    """The base of callbacks, from the package that the script has imported.

    There are two that are the same under two names, and a Trainer wants callbacks of its own.
    """
    names = ["lightning.pytorch", "pytorch_lightning"]
    names.sort(key=lambda name: name not in sys.modules)
    for name in names:
        try:
            return import_module(name).Callback
        except ImportError:
            continue
    raise BackendUnavailable(
        "elbowroom.integrations.lightning needs Lightning: install it with "
        "'pip install elbowroom[lightning]'"
    )


if TYPE_CHECKING:
    from lightning.pytorch import Callback

    from elbowroom.integrations.lightning_checkpoints import CheckpointCallback
else:
    Callback = _find_callback()

__all__ = ["ActivationsCallback", "CheckpointCallback"]


def __getattr__(name: str) -> Any:
    if name == "CheckpointCallback":
        return import_module("elbowroom.integrations.lightning_checkpoints").CheckpointCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class ActivationsCallback(Callback):
    """Opens a room around every training step, up to its backward.

    Args:
        options: Arguments of `elbowroom.Activations`. The model is the LightningModule; the
            optimizer is the Trainer's where there is one only.
    """

    def __init__(self, **options: Any) -> None:
        self.room: Activations | None = None
        self.ledger = Ledger()
        """Of the last pass, also when training is over."""

        self._options = options
        self._module: Any = None
        self._is_open = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open a room for the module."""
        optimizers = trainer.optimizers
        options: dict[str, Any] = {"optimizer": optimizers[0] if len(optimizers) == 1 else None}
        options |= self._options
        self.room, self._module = Activations(pl_module, **options), pl_module
        step = pl_module.training_step
        # In place of the method: Lightning has no hook between the step and its backward that
        # would also be called when the step fails.
        pl_module.training_step = (
            self.room(step) if pl_module.automatic_optimization else self._by_hand(step)
        )

    def _by_hand(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A step that runs backward itself, perhaps several times: a pass lasts until it does."""

        @functools.wraps(step)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            handle = register_module_forward_pre_hook(lambda *_: self._open())
            try:
                return step(*args, **kwargs)
            finally:
                handle.remove()
                self._shut()

        return wrapped

    def _open(self) -> None:
        if self.room is not None and not self._is_open and top_hooks() is None:
            self.room.__enter__()
            self._is_open = True

    def _shut(self) -> None:
        if self.room is not None and self._is_open:
            self.room.__exit__(None, None, None)
            self._is_open = False

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """End the pass of a step that runs backward itself."""
        hooks = top_hooks()
        if hooks is not None and isinstance(getattr(hooks[0], "__self__", None), Pass):
            self._shut()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the totals of the step."""
        if self.room is not None:
            self.ledger = self.room.ledger
            pl_module.log_dict(totals(self.ledger), batch_size=1)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Take everything off the module again."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Take everything off the module again."""
        self._close()

    def _close(self) -> None:
        if self.room is not None:
            self.room.close()
            del self._module.training_step
            self.room = self._module = None
