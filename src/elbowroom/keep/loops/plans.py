"""How a loop is gone back over: the choice that is made before it runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elbowroom.codec import Bound

Kind = Literal["full", "replay", "history"]
Schedule = Literal["revolve", "periodic", "online"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is kept of a loop.

    `full`: what autograd keeps. `replay`: some states, from which steps are made again. `history`:
    all that autograd keeps, encoded within a bound.
    """

    kind: Kind
    slots: int = 1
    disk_slots: int = 0
    folder: Path | None = None
    segment: int = 1
    """Steps that are taped at once."""

    schedule: Schedule = "revolve"
    bound: Bound | None = None
    """Of states in slots, or of the history; None keeps them as they are."""

    every: int = 1
    """Of the history, one frame in so many is encoded, and those between are interpolated."""

    history_bytes: float = float("inf")
    """Most that encoded slots or a history may take."""

    reason: str = ""
