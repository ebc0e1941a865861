"""What a training run keeps: activations for backward."""

from elbowroom.keep.activations import Activations as Activations
from elbowroom.keep.activations import Ledger as Ledger

__all__ = ["Activations", "Ledger"]
