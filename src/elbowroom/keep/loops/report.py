"""What a loop has taken, and what is said of it."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from elbowroom.keep.loops.options import Choices
from elbowroom.keep.loops.plans import Kind, Plan
from elbowroom.keep.loops.slots import LoopWarning


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the last call of a loop has taken."""

    kind: Kind
    """How it is gone back over; see `Plan`."""

    reason: str
    steps: int | None
    """Its length, once it is known; None for a plain loop."""

    made: int
    """Steps made so far, again or for the first time; 0 for a plain loop."""

    held_bytes: int
    """Of memory, between forward and backward, where that is counted."""

    def __str__(self) -> str:
        """In one line."""
        if self.steps is None:
            return f"a plain loop: {self.reason}"
        return (
            f"{self.kind}: {self.steps} steps, {self.made} made, {self.held_bytes:,} bytes held; "
            f"{self.reason}"
        )


def report_of(plan: Plan, engine: Any) -> Report:
    """Of the last call."""
    return Report(
        kind=plan.kind,
        reason=plan.reason or f"{plan.slots + plan.disk_slots} states are kept at most",
        steps=None if engine is None else engine.length,
        made=0 if engine is None else engine.made,
        held_bytes=0 if engine is None else engine.held_bytes,
    )


def warn_plain(why: str) -> None:
    """A loop that was asked to be smaller is a plain one."""
    warnings.warn(f"the loop keeps all that autograd keeps: {why}", LoopWarning, stacklevel=4)


def why_plain(asked: Choices) -> str:
    """Why a loop is a plain one from the start."""
    if not asked.is_bounded:
        return "no bound was asked for"
    return "no gradient is wanted" if not torch.is_grad_enabled() else "torch.func is at work"
