"""What a training run keeps: activations for backward, and the states of time loops."""

from typing import TYPE_CHECKING

from elbowroom.keep.activations import Ledger as Ledger
from elbowroom.lazy import later

if TYPE_CHECKING:
    from elbowroom.keep.activations import Activations as Activations
    from elbowroom.keep.loops import Encoding as Encoding
    from elbowroom.keep.loops import Loop as Loop
    from elbowroom.keep.loops import LoopWarning as LoopWarning
    from elbowroom.keep.loops import loop as loop
else:
    _LOOPS = dict.fromkeys(("Encoding", "Loop", "LoopWarning", "loop"), "elbowroom.keep.loops")
    __getattr__ = later(__name__, {"Activations": "elbowroom.keep.activations", **_LOOPS})

__all__ = ["Activations", "Encoding", "Ledger", "Loop", "LoopWarning", "loop"]
