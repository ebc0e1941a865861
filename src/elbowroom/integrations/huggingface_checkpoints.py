"""Checkpoints for the Trainer of Hugging Face transformers, as a callback.

    checkpoints = CheckpointCallback("run1")
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[checkpoints])
    trainer.train(resume_from_checkpoint=checkpoints.last())

The Trainer sets its counts of epochs and batches before it calls any callback, and only from what
`train` is told. So `last()` gives it a folder with its own small file of counts, and the callback
brings back the rest when training begins.
"""

import json
import shutil
import tempfile
import warnings
import weakref
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from elbowroom.errors import BackendUnavailable, CorruptData, InvalidArgument
from elbowroom.integrations.huggingface_batches import Batches
from elbowroom.store.checkpoint import Checkpointer, CheckpointWarning, Store
from elbowroom.store.checkpoint.sources import read_randomness, set_randomness

try:
    from accelerate.state import AcceleratorState
    from transformers import TrainerCallback
    from transformers.trainer_callback import TrainerState
except ImportError as error:
    raise BackendUnavailable(
        "elbowroom.integrations.huggingface needs transformers and accelerate: install them with "
        "'pip install elbowroom[huggingface]'"
    ) from error

_OWN_NAMES = ("model", "optimizer", "scheduler", "scaler", "loader", "trainer", "batches")
# A training that has ended in an error tells no callback, and may be begun again in one process.
_open: "weakref.WeakValueDictionary[str, CheckpointCallback]" = weakref.WeakValueDictionary()


class CheckpointCallback(TrainerCallback):
    """Saves the training every few steps, and lets the Trainer go on where it was.

    Between two steps, after logs and evaluations, it saves model, optimizer, scheduler, scaler,
    the Trainer's state, random numbers and the order of batches. Resumed, a run has the losses of
    one that nothing has interrupted, bit for bit.

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
        self.checkpointer: Checkpointer | None = None
        """While training runs."""

        self._where = where
        self._options = options
        self._is_resumed_by_default = bool(options.pop("resume", True))
        self._model: Any = None
        self._found: int | None = None
        self._batches: Batches | None = None
        self._counts: _Counts | None = None
        self._randomness: dict[str, Any] | None = None
        self._clean_up: list[Any] = []

    def last(self) -> str | None:
        """A folder for `train(resume_from_checkpoint=)`, or None where there is nothing yet.

        The newest checkpoint that is whole is meant. The folder is a temporary one, for this
        callback's Trainer only.
        """
        if self._model is None:
            raise InvalidArgument(
                "the callback has no Trainer yet: make one with callbacks=[...], and ask for the "
                "last checkpoint then"
            )
        self._end()
        self._found = None
        if not self._is_resumed_by_default:
            return None
        counts = _Counts()
        self._found = self._find(counts)
        if self._found is None:
            return None
        folder = tempfile.mkdtemp(prefix="elbowroom-")
        self._clean_up.append(weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True))
        _write_folder(Path(folder), counts.read(), self._model)
        if _has_adapters(self._model):
            hook = self._model.register_load_state_dict_post_hook(_forgive_missing)
            self._clean_up.append(hook.remove)
        return folder

    def on_init_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Know that there is a Trainer."""
        self._model = given["model"]

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Begin saving, and bring back what `last` has found."""
        self._end()
        found, self._found = self._found, None
        if state.global_step != (found or 0):
            raise InvalidArgument(
                f"the Trainer begins at step {state.global_step}, of which {self._where} knows "
                "nothing: train with resume_from_checkpoint=checkpoints.last()"
            )
        if _is_sharded(given["model"]):
            raise InvalidArgument(
                "CheckpointCallback is for models that are whole on every rank: save sharded ones "
                "with elbowroom.store.checkpoint.dcp"
            )
        self._counts = _Counts(state)
        self._batches = Batches(given["train_dataloader"], args.gradient_accumulation_steps)
        self._open_store(given, found)
        if state.global_step >= state.max_steps:
            # The Trainer would make one more step before it looks.
            self._batches.drop()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Keep what the order of the epoch is drawn from, or draw the same again."""
        if self._batches is not None and not self._batches.begin():
            self._randomness = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Save the step before, if it is time; its logs and evaluations are part of it now."""
        if self.checkpointer is None or self._batches is None:
            return
        if self._randomness is not None:
            set_randomness(self._randomness)
            self._randomness = None
        elif state.global_step > self.checkpointer.steps:
            self.checkpointer.step()
        self._batches.pass_on()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Forget an epoch that is over."""
        if self._batches is not None and state.epoch == int(state.epoch):
            self._batches.end()

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Save the end before the Trainer loads the best model in place of the last."""
        if "train_runtime" in (given.get("logs") or {}):
            self._finish(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Save the end, and let go of everything."""
        self._finish(state)
        self._end()

    def _find(self, counts: "_Counts") -> int | None:
        """The step of the newest whole checkpoint; its counts are read."""
        before = read_randomness()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the checkpoint has ", CheckpointWarning)
            self._take_over()
            places = ("far", "keep_far", "keep", "hash")
            options = {name: self._options[name] for name in places if name in self._options}
            reader = Checkpointer(self._where, trainer=counts, handle_signals=False, **options)
        try:
            if reader.resumed_from is not None and not counts.is_read:
                raise InvalidArgument(
                    f"{self._where} has checkpoints of another loop than the Trainer's: name "
                    "another folder"
                )
            return reader.resumed_from
        finally:
            reader.close(save=False)
            set_randomness(before)

    def _open_store(self, given: dict[str, Any], found: int | None) -> None:
        optimizer = given["optimizer"]
        objects = {
            "model": given["model"],
            # Of accelerate's wrapper, what is wrapped: hooks on the wrapper are never called.
            "optimizer": getattr(optimizer, "optimizer", optimizer),
            "scheduler": given["lr_scheduler"],
            "scaler": getattr(optimizer, "scaler", None),
            "trainer": self._counts,
            "batches": self._batches,
        }
        options = dict(self._options)
        options["per_rank"] = (*options.get("per_rank", ()), "batches")
        self._take_over()
        checkpointer = Checkpointer(self._where, resume=False, **objects, **options)
        try:
            if found is not None:
                checkpointer.restore(found)
                # Again when the first step begins: until then, batches are drawn anew.
                self._randomness = read_randomness()
            elif self._is_resumed_by_default and (names := Store.open(self._where).names()):
                raise InvalidArgument(
                    f"{self._where} has a checkpoint of step {names[-1].step}: train with "
                    "resume_from_checkpoint=checkpoints.last(), or name another folder"
                )
        except BaseException:
            checkpointer.close(save=False)
            raise
        self.checkpointer = checkpointer
        _open[str(self._where)] = self
        # Nor does it tell when nobody knows the callback any more.
        end = weakref.finalize(self, checkpointer.close, save=False)
        end.atexit = False

    def _take_over(self) -> None:
        """End what an earlier training in this process has left open."""
        other = _open.pop(str(self._where), None)
        if other is not None:
            other._end()

    def _finish(self, state: Any) -> None:
        if self.checkpointer is not None and state.global_step > self.checkpointer.steps:
            self.checkpointer.step()
            self.checkpointer.close()

    def _end(self) -> None:
        if self._batches is not None:
            self._batches.release()
        if self.checkpointer is not None:
            self.checkpointer.close(save=False)
        self.checkpointer = self._batches = self._counts = self._randomness = None
        while self._clean_up:
            self._clean_up.pop()()


class _Counts:
    """The Trainer's state: steps, epoch, logs, best metric.

    As bytes of one tensor: what was logged long ago is the same in all checkpoints, and is then
    stored once.
    """

    def __init__(self, state: TrainerState | None = None) -> None:
        self._state = state
        self._text: str | None = None

    @property
    def is_read(self) -> bool:
        """Whether there was one in the checkpoint."""
        return self._text is not None

    def read(self) -> str:
        """The JSON that the Trainer reads."""
        assert self._text is not None
        return self._text

    def state_dict(self) -> dict[str, Tensor]:
        """As JSON."""
        try:
            text = json.dumps(vars(self._state), default=_to_number)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"the Trainer's state cannot be written as JSON, {error}: log numbers only"
            ) from error
        return {"json": torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)}

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Keep it for the Trainer, which reads it from a file."""
        try:
            self._text = bytes(state_dict["json"].tolist()).decode()
            json.loads(self._text)
        except (TypeError, ValueError, KeyError) as error:
            raise CorruptData(f"the checkpoint's state of the Trainer is none: {error}") from error


def _to_number(value: Any) -> Any:
    """Numbers of numpy and torch, which metrics often are."""
    if callable(getattr(value, "item", None)):
        return value.item()
    raise TypeError(f"it holds a {type(value).__name__}")


def _write_folder(folder: Path, counts: str, model: torch.nn.Module) -> None:
    """What the Trainer takes for a checkpoint.

    It asks for weights. Those of the model come later, verified, from the store: so there is a list
    that says where they are, and nothing in that place.
    """
    (folder / "trainer_state.json").write_text(counts, encoding="utf-8")
    save_file({}, str(folder / "none.safetensors"))
    index = {"metadata": {}, "weight_map": dict.fromkeys(model.state_dict(), "none.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    if _has_adapters(model):
        # For these the Trainer looks for no list.
        save_file({}, str(folder / "model.safetensors"))


def _has_adapters(model: torch.nn.Module) -> bool:
    return any(kind.__module__.partition(".")[0] == "peft" for kind in type(model).__mro__)


def _forgive_missing(module: torch.nn.Module, keys: Any) -> None:
    keys.missing_keys.clear()


def _is_sharded(model: torch.nn.Module) -> bool:
    state = AcceleratorState()
    plugins = ("fsdp_plugin", "deepspeed_plugin")
    return any(getattr(state, name, None) is not None for name in plugins) or any(
        isinstance(parameter, DTensor) for parameter in model.parameters()
    )
