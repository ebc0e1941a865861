"""What a training run keeps: activations for backward, and the states of time loops."""

from typing import TYPE_CHECKING

from elbowroom.keep.activations import Ledger as Ledger
from elbowroom.lazy import later

if TYPE_CHECKING:
    from elbowroom.keep.activations import Activations as Activations
    from elbowroom.keep.loops import Encoding as Encoding
    from elbowroom.keep.loops import LearnedCoder as LearnedCoder
    from elbowroom.keep.loops import LinearCoder as LinearCoder
    from elbowroom.keep.loops import Loop as Loop
    from elbowroom.keep.loops import LoopWarning as LoopWarning
    from elbowroom.keep.loops import Network as Network
    from elbowroom.keep.loops import loop as loop
else:
    _LOOPS = dict.fromkeys(
        ("Encoding", "LearnedCoder", "LinearCoder", "Loop", "LoopWarning", "Network", "loop"),
        "elbowroom.keep.loops",
    )
    __getattr__ = later(__name__, {"Activations": "elbowroom.keep.activations", **_LOOPS})

__all__ = [
    "Activations",
    "Encoding",
    "LearnedCoder",
    "Ledger",
    "LinearCoder",
    "Loop",
    "LoopWarning",
    "Network",
    "loop",
]
