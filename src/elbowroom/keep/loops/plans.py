"""How a loop is gone back over: the choice that is made before it runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["full", "tape", "replay", "history"]
Schedule = Literal["revolve", "periodic", "online", "mixed"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is kept of a loop.

    `full`: what autograd keeps, of every order. `tape`: the same for the first order, and states
    for the second. `replay`: some states, from which steps are made again. `history`: all that
    autograd keeps, encoded within a bound.
    """

    kind: Kind
    slots: int = 1
    disk_slots: int = 0
    folder: Path | None = None
    segment: int = 1
    """Steps that are taped at once."""

    schedule: Schedule = "revolve"
    history_bytes: float = float("inf")
    """Most that an encoded history may take."""

    reason: str = ""
