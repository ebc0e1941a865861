"""Rooms for the Trainer of Hugging Face transformers: a mixin and a callback.

The mixin opens a room around the loss and adds the ledger's totals to every log of the training:

    class MyTrainer(ActivationsMixin, Trainer): ...

    trainer = MyTrainer(model, args, train_dataset=data, activations={"tolerance": 0.1})

The callback does without a class of one's own. It can only reach the model's forward, which is all
there is where models compute their own loss, as most of transformers do:

    trainer = Trainer(model, args, train_dataset=data, callbacks=[ActivationsCallback()])
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from elbowroom.errors import BackendUnavailable
from elbowroom.integrations.trackers import Tracker, totals
from elbowroom.keep import Activations
from elbowroom.keep.activations import Ledger

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise BackendUnavailable(
        "elbowroom.integrations.huggingface needs transformers and accelerate: install them with "
        "'pip install elbowroom[huggingface]'"
    ) from error

if TYPE_CHECKING:
    from elbowroom.integrations.huggingface_checkpoints import CheckpointCallback

__all__ = ["ActivationsCallback", "ActivationsMixin", "CheckpointCallback"]


def __getattr__(name: str) -> Any:
    if name == "CheckpointCallback":
        module = import_module("elbowroom.integrations.huggingface_checkpoints")
        return module.CheckpointCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class ActivationsMixin:
    """For a Trainer, in front of it among the bases.

    Args:
        args: The Trainer's own.
        activations: Arguments of `elbowroom.Activations`, such as {"memory": "6 GB"}; the model
            and the optimizer are the Trainer's.
        kwargs: The Trainer's own.
    """

    # What the Trainer has, for whoever reads this class alone.
    optimizer: Any

    def __init__(
        self, *args: Any, activations: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self.room: Activations | None = None
        self._room_options = dict(activations or {})
        super().__init__(*args, **kwargs)

    def training_step(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """One step of the Trainer, within the room of the model that it is given."""
        if self.room is None or self.room.model is not model:
            if self.room is not None:
                self.room.close()
            options = {"optimizer": _readable(self.optimizer), **self._room_options}
            self.room = Activations(model, **options)
        return _above(self).training_step(model, *args, **kwargs)

    def compute_loss_context_manager(self) -> ExitStack:
        """The Trainer's own contexts, and in training the room."""
        stack = _above(self).compute_loss_context_manager()
        if self.room is not None and self.room.model.training and torch.is_grad_enabled():
            stack.enter_context(self.room)
        return stack

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """What the Trainer logs, with the ledger's totals beside the loss."""
        if self.room is not None and "loss" in logs:
            logs = {**logs, **totals(self.room.ledger)}
        _above(self).log(logs, *args, **kwargs)


class ActivationsCallback(TrainerCallback):
    """For a Trainer as it is: every forward of the model in training is a pass of a room.

    The ledger's totals go into the Trainer's log history and to the trackers given here; the
    Trainer's own reporters come before callbacks and do not see them.

    Args:
        trackers: See `elbowroom.integrations.trackers`.
        options: Arguments of `elbowroom.Activations`.
    """

    def __init__(self, *, trackers: Sequence[Tracker] = (), **options: Any) -> None:
        self.room: Activations | None = None
        self.ledger = Ledger()
        """Of the last pass, also when training is over."""

        self._trackers = trackers
        self._options = options

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Open a room for the model."""
        options = {"optimizer": _readable(given.get("optimizer")), **self._options}
        self.room = Activations(given["model"], **options)
        self.room.install()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Keep the ledger of the step."""
        if self.room is not None:
            self.ledger = self.room.ledger
            for tracker in self._trackers:
                tracker.log(state.global_step, totals(self.ledger))

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put the totals beside the loss."""
        if self.room is not None and "loss" in (given.get("logs") or {}):
            state.log_history[-1].update(totals(self.ledger))

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take everything off the model again."""
        if self.room is not None:
            self.room.close()
            self.room = None


def _above(trainer: ActivationsMixin) -> Any:
    """The Trainer that follows the mixin among the bases."""
    return super(ActivationsMixin, trainer)


def _readable(optimizer: Any) -> Any:
    """The optimizer, where it shows its state; those of other engines do not."""
    return optimizer if hasattr(optimizer, "state") and hasattr(optimizer, "param_groups") else None
