"""What a training run stores: checkpoints."""

from typing import TYPE_CHECKING

from elbowroom.lazy import later

if TYPE_CHECKING:
    from elbowroom.store.checkpoint import Checkpointer as Checkpointer
    from elbowroom.store.checkpoint import CheckpointWarning as CheckpointWarning
    from elbowroom.store.checkpoint import Keep as Keep
    from elbowroom.store.checkpoint import load as load
else:
    _NAMES = ("Checkpointer", "CheckpointWarning", "Keep", "load")
    __getattr__ = later(__name__, dict.fromkeys(_NAMES, "elbowroom.store.checkpoint"))

__all__ = ["CheckpointWarning", "Checkpointer", "Keep", "load"]
