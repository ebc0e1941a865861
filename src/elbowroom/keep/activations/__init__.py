"""Activations kept for backward, in a fraction of their memory."""

from typing import TYPE_CHECKING

from elbowroom.keep.activations.ledger import Ledger as Ledger
from elbowroom.lazy import later

if TYPE_CHECKING:
    from elbowroom.keep.activations.room import Activations as Activations
else:
    # Ledgers can be read and shown without torch.
    __getattr__ = later(__name__, {"Activations": "elbowroom.keep.activations.room"})

__all__ = ["Activations", "Ledger"]
