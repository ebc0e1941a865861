"""What makes up the state of a run: objects with a state_dict, and the sources of randomness."""

import difflib
import random
from collections.abc import Collection, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy
import torch

from elbowroom.errors import InvalidArgument

OWN_NAMES = frozenset({"steps", "randomness", "loader", "per_rank"})


class CheckpointWarning(UserWarning):
    """Something about checkpoints that a user should know; training goes on."""


@runtime_checkable
class Stateful(Protocol):
    """Whatever can tell its state and take it back: modules, optimizers, schedulers, scalers."""

    def state_dict(self) -> Any:
        """All there is to know."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Become what that was."""
        ...


def check_sources(
    objects: Mapping[str, Any], settings: Collection[str] = ()
) -> dict[str, Stateful]:
    """Refuse what has no state, by name; one that is nearly that of a setting is taken for it."""
    for name, value in objects.items():
        if isinstance(value, type) or not isinstance(value, Stateful):
            near = difflib.get_close_matches(name, settings, 1)
            raise InvalidArgument(
                f"{name}= must have state_dict and load_state_dict, and {type(value).__name__} has "
                + (f"not: did you mean {near[0]}=?" if near else "not: give an object that has, or")
                + ("" if near else " keep it yourself")
            )
    return dict(objects)


def check_names(sources: Mapping[str, Any], per_rank: Any) -> None:
    """Refuse names that mean something else, and those of nothing."""
    for name in sources:
        if name in OWN_NAMES:
            raise InvalidArgument(
                f"{name}= is a name that checkpoints use themselves: give the object another"
            )
    if isinstance(per_rank, str) or any(name not in sources for name in per_rank):
        raise InvalidArgument(
            f"per_rank must list names of objects that are given, got {per_rank!r}; there are: "
            f"{', '.join(sources) or 'none'}"
        )


def read_randomness() -> dict[str, Any]:
    """The state of every generator that training may draw from."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    state["numpy"] = numpy.random.get_state(legacy=False)  # noqa: NPY002  as others do
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_randomness(state: Mapping[str, Any]) -> None:
    """Go on drawing where that state was taken."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        numpy.random.set_state(state["numpy"])  # noqa: NPY002  the one that others draw from
    if "cuda" in state and torch.cuda.is_available():
        count = min(len(state["cuda"]), torch.cuda.device_count())
        for device in range(count):
            torch.cuda.set_rng_state(state["cuda"][device], device)


def load_into(name: str, source: Stateful, state: Any) -> None:
    """Give an object its state; that it does not fit is told in one sentence."""
    try:
        source.load_state_dict(state)
    except InvalidArgument:
        raise  # says what is wrong itself
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        said = " ".join(str(error).split())
        raise InvalidArgument(
            f"the checkpoint does not fit {name}= ({type(source).__name__}): {said[:300]}; "
            f"elbowroom.load(folder, {name!r}) gives what is in it as a dict, with strip= and "
            "names= under other names, and with into= and strict=False as far as it fits"
        ) from error
