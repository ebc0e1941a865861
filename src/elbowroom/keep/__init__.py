"""What a training run keeps: activations for backward."""

from typing import TYPE_CHECKING

from elbowroom.keep.activations import Ledger as Ledger
from elbowroom.lazy import later

if TYPE_CHECKING:
    from elbowroom.keep.activations import Activations as Activations
else:
    __getattr__ = later(__name__, {"Activations": "elbowroom.keep.activations"})

__all__ = ["Activations", "Ledger"]
