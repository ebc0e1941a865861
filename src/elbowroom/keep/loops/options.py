"""What a loop may be asked for."""

import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from elbowroom.errors import InvalidArgument
from elbowroom.keep.loops.coders import Coder, PlainCoder
from elbowroom.keep.loops.plans import Schedule
from elbowroom.keep.loops.replay import Until
from elbowroom.sizes import parse_bytes


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How a history is encoded.

    relative: How far a value may be off, relative to the range of its frame; by default a share of
        `tolerance`.
    every: Of how many frames one is encoded, and the others interpolated as far as that keeps the
        bound; found on the way by default, and 1 encodes all.
    coder: Makes what encodes frames of one series.
    """

    relative: float | None = None
    every: int | None = None
    coder: Callable[[], Coder] = PlainCoder

    def __post_init__(self) -> None:
        if self.relative is not None and not (_is_number(self.relative) and 0 < self.relative < 1):
            raise InvalidArgument(
                f"relative must be a share of a frame's range, above 0 and below 1, got "
                f"{self.relative!r}"
            )
        if self.every is not None and (_whole(self.every) or 0) < 1:
            raise InvalidArgument(f"every must be a number of steps from 1 on, got {self.every!r}")
        if not callable(self.coder):
            raise InvalidArgument(
                f"coder must make a coder for each series of frames, got one of type "
                f"{type(self.coder).__name__}: pass the class, or a function that returns one"
            )


Store = Literal["memory", "disk", "encoded"] | str | Path | Encoding


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What was asked for, read and found to go together."""

    memory_bytes: int | None
    slots: tuple[int, int] | None
    """In memory and on disk."""

    folder: Path | None
    schedule: Schedule | None
    tolerance: float
    is_encoded: bool
    encoding: Encoding

    @property
    def is_bounded(self) -> bool:
        """Whether anything was asked for at all."""
        return self.memory_bytes is not None or self.slots is not None or self.is_encoded


def read_choices(memory: Any, slots: Any, store: Any, schedule: Any, tolerance: Any) -> Choices:
    """Read what `loop` was asked for; what does not go together is refused."""
    if not _is_number(tolerance) or not 0 <= tolerance < 1:
        raise InvalidArgument(
            f"tolerance must be the relative error of a gradient, from 0 (exact) to below 1, "
            f"got {tolerance!r}"
        )
    if schedule not in (None, "revolve", "periodic", "online", "mixed"):
        raise InvalidArgument(
            f"schedule must be revolve, periodic, online or mixed, got {schedule!r}: leave it out"
        )
    store = _read_store(store)
    is_encoded = store == "encoded" or isinstance(store, Encoding)
    encoding = store if isinstance(store, Encoding) else Encoding()
    if is_encoded and not tolerance and encoding.relative is None:
        raise InvalidArgument("an encoded history needs a tolerance above 0, such as 0.01")
    pair = _read_slots(slots, store)
    if pair is not None and (memory is not None or is_encoded):
        other = "a history is encoded" if is_encoded else "memory= chooses them itself"
        raise InvalidArgument(
            f"slots={slots!r} is how many states are kept, and {other}: leave one of them out"
        )
    if pair is None and (schedule is not None or (store is not None and not is_encoded)):
        name, value = ("schedule", schedule) if schedule is not None else ("store", store)
        how = "add slots=" if memory is None else "give slots= in place of memory="
        raise InvalidArgument(
            f"{name}={str(value)!r} is about slots, and there are none: {how}, such as slots=20"
        )
    if schedule == "mixed" and pair is not None and pair[1]:
        raise InvalidArgument(
            "schedule='mixed' keeps tapes as well as states, and tapes stay in memory: give slots= "
            "as one number, and no store="
        )
    return Choices(
        memory_bytes=None if memory is None else parse_bytes(memory),
        slots=pair,
        folder=store if isinstance(store, Path) else None,
        schedule=schedule,
        tolerance=float(tolerance),
        is_encoded=is_encoded,
        encoding=encoding,
    )


def _read_store(store: Any) -> Any:
    if isinstance(store, str) and store not in ("memory", "disk", "encoded"):
        if os.sep not in store:
            raise InvalidArgument(
                f"store must be memory, disk, encoded, a folder or an Encoding, got {store!r}: "
                f"write ./{store} if that is a folder"
            )
        return Path(store)
    if store is not None and not isinstance(store, str | Path | Encoding):
        raise InvalidArgument(
            f"store must be memory, disk, encoded, a folder or an Encoding, got {store!r}"
        )
    return store


def _read_slots(slots: Any, store: Any) -> tuple[int, int] | None:
    """Slots in memory and on disk; None if nobody has asked for any."""
    if slots is None:
        return None
    pair = tuple(slots) if isinstance(slots, tuple | list) else (slots, 0)
    whole = [_whole(number) for number in pair]
    counts = [number for number in whole if number is not None and number >= 0]
    if len(whole) != 2 or len(counts) != 2 or sum(counts) < 1:
        raise InvalidArgument(
            f"slots must be a number of states from 1 on, or a pair for memory and disk, got "
            f"{slots!r}"
        )
    inner, outer = counts
    if (store == "disk" or isinstance(store, Path)) and not isinstance(slots, tuple | list):
        return 1, inner - 1  # the busiest one stays in memory
    return inner, outer


def read_steps(steps: Any, given: int | None, until: Until | None) -> int | None:
    """The length of a loop; None if it is not known before the end."""
    if until is not None and not callable(until):
        raise InvalidArgument(
            f"until must be a function of the state, got {type(until).__name__}: it says when to "
            "end, such as until=lambda state: state.abs().max() > 1"
        )
    if steps is None:
        if given is None and until is None:
            raise InvalidArgument("steps is needed, or until, or inputs: the loop would not end")
        return given
    count = _whole(steps)
    if count is None or count < 0:
        raise InvalidArgument(f"steps must be a whole number from 0 on, got {steps!r}")
    if given is not None and given < count:
        raise InvalidArgument(f"inputs are for {given} steps, and {count} are asked for")
    return count


def _whole(value: Any) -> int | None:
    """A whole number of whatever type, such as numpy's; None for all else."""
    if isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool):
        return None
    try:
        return operator.index(value)
    except (TypeError, ValueError):
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
