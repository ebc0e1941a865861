"""A Checkpointer on any system, which saves and brings back whatever state it is given."""

from functools import partial
from typing import Any
from unittest import mock

from elbowroom.store.checkpoint import Checkpointer, checkpointer
from elbowroom.store.checkpoint.journal import Journal
from elbowroom.store.checkpoint.system import System

from .replay import ROOT, state_at


class Holder:
    """What a Checkpointer is given: the state of a step."""

    def __init__(self, step: int = 0) -> None:
        self.state = state_at(step)

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def checkpointer_on(system: System, holder: Holder, **options: Any) -> Checkpointer:
    """A Checkpointer whose files are those of another system."""
    with mock.patch.object(checkpointer, "Journal", partial(Journal, system=system)):
        return Checkpointer(ROOT, held=holder, handle_signals=False, **options)
