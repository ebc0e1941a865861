"""What a loop may be asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from elbowroom.errors import InvalidArgument
from elbowroom.keep.loops.coders import Coder, PlainCoder
from elbowroom.keep.loops.replay import Until


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
        if self.relative is not None and not 0 < self.relative < 1:
            raise InvalidArgument(
                f"relative must be a share of a frame's range, above 0 and below 1, got "
                f"{self.relative}"
            )
        if self.every is not None and self.every < 1:
            raise InvalidArgument(f"every must be a number of steps from 1 on, got {self.every}")


Store = Literal["memory", "disk", "encoded"] | Path | Encoding


def read_slots(slots: Any, store: Any) -> tuple[int, int] | None:
    """Slots in memory and on disk; None if nobody has asked for any."""
    if slots is None:
        return None
    pair = slots if isinstance(slots, tuple) else (slots, 0)
    if store == "disk" or isinstance(store, Path):
        pair = pair if isinstance(slots, tuple) else (1, slots - 1 if isinstance(slots, int) else 0)
    is_whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in pair)
    if len(pair) != 2 or not is_whole or sum(pair) < 1:
        raise InvalidArgument(
            f"slots must be a number of states from 1 on, or a pair for memory and disk, got "
            f"{slots!r}"
        )
    return pair


def read_steps(steps: Any, given: int | None, until: Until | None) -> int | None:
    """The length of a loop; None if it is not known before the end."""
    if steps is None:
        if given is None and until is None:
            raise InvalidArgument("steps is needed, or until, or inputs: the loop would not end")
        return given
    if isinstance(steps, Tensor) and steps.numel() == 1 and not steps.is_floating_point():
        steps = int(steps)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise InvalidArgument(f"steps must be a number from 0 on, got {steps!r}")
    if given is not None and given < steps:
        raise InvalidArgument(f"inputs are for {given} steps, and {steps} are asked for")
    return steps
