"""The checkpoint of Lightning's Trainer, in parts that a store can hold."""

import warnings
from collections.abc import Mapping
from typing import Any

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint import CheckpointWarning
from elbowroom.store.checkpoint.state import flatten

# Under names that tolerances and exports know.
_KEYS = {"model": "state_dict", "optimizer": "optimizer_states"}
# What a run can do without, since the script brings it again, and may be of any type.
_SPARE = (
    "callbacks",
    *("hyper_parameters", "hparams_name", "hparams_type"),
    *("datamodule_hyper_parameters", "datamodule_hparams_name", "datamodule_hparams_type"),
)


class Parts:
    """Model, optimizers and the rest, as objects with states of their own."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._made: dict[str, Any] = {}
        self._got: dict[str, Any] = {}
        self._told: set[str] = set()
        self.sources = {name: _Part(self, name) for name in (*_KEYS, "trainer")}

    def take(self, name: str) -> Any:
        """A part of a checkpoint that is made when its first part is asked for."""
        if name not in self._made:
            rest = self._trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
            for count in rest["loops"]["fit_loop"]["epoch_progress"].values():
                # Between epochs, what has not started begins again as a whole.
                count["ready"] = min(count["ready"], count["started"])
            self._made = {part: rest.pop(key) for part, key in _KEYS.items()}
            self._made["trainer"] = self._hold(rest)
        return self._made.pop(name)

    def give(self, name: str, state: Any) -> None:
        """A part that was read."""
        self._got[name] = state

    def join(self, where: object) -> dict[str, Any]:
        """The checkpoint again, from what was read there."""
        if self._got.keys() != self.sources.keys():
            raise InvalidArgument(
                f"{where} has checkpoints of another loop than the Trainer's: name another folder"
            )
        got, self._got = self._got, {}
        return {**got["trainer"], **{key: got[part] for part, key in _KEYS.items()}}

    def _hold(self, rest: Mapping[str, Any]) -> dict[str, Any]:
        """Without what the store cannot hold and the run can do without."""
        held = dict(rest)
        for name in _SPARE:
            if isinstance(held.get(name), dict):
                values: dict[str, Any] = held[name]
                held[name] = {
                    k: v for k, v in values.items() if self._is_holdable(v, f"{name}[{k!r}]")
                }
            elif name in held and not self._is_holdable(held[name], name):
                del held[name]
        return held

    def _is_holdable(self, value: Any, name: str) -> bool:
        try:
            flatten(value, name)
        except InvalidArgument as error:
            if name not in self._told:
                self._told.add(name)
                said = f"{name} is left out of checkpoints, which cannot hold it: {error}"
                warnings.warn(said, CheckpointWarning, stacklevel=2)
            return False
        return True


class _Part:
    def __init__(self, parts: Parts, name: str) -> None:
        self._parts, self._name = parts, name

    def state_dict(self) -> Any:
        return self._parts.take(self._name)

    def load_state_dict(self, state_dict: Any) -> None:
        self._parts.give(self._name, state_dict)
