"""Activations kept for backward, in a fraction of their memory."""

from elbowroom.keep.activations.ledger import Ledger as Ledger
from elbowroom.keep.activations.room import Activations as Activations

__all__ = ["Activations", "Ledger"]
