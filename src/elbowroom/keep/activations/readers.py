"""Who reads the saved tensors of a pass, and who may write over what is made for it."""

import threading
from typing import Any

import torch
from torch import Tensor

from elbowroom.keep.activations.entries import UNKNOWN, Entry


class Readers:
    """The threads in which backward has run through one pass."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def come(self) -> None:
        """Backward runs in this thread."""
        self._threads.add(threading.get_ident())

    def is_alone(self, entry: Entry, node: Any) -> bool:
        """Whether nobody but the node can be reading what is made for it now.

        Others are a second thread in the same graph, a second slot of the same node (`y * y`), the
        graph of the backward itself, further gradients that go through the graph at once, and
        functions of the user's own, which may have handed on what they have read.
        """
        self.come()
        if node is None or len(self._threads) > 1 or torch.is_grad_enabled() or _are_many():
            return False
        if UNKNOWN in entry.uses:
            return False
        number = node._sequence_nr()
        return sum(use.number == number for use in entry.uses) < 2


def count_holders(tensor: Tensor) -> int:
    """How many have its storage; asking for it counts too."""
    core: Any = torch._C
    return core._storage_Use_Count(tensor.untyped_storage()._cdata)


# Of a tensor that nobody else has.
ALONE = count_holders(torch.empty(1))


def _are_many() -> bool:
    """Under `is_grads_batched`, where an operation runs once for each gradient."""
    core: Any = torch._C
    level = core._vmapmode_increment_nesting()
    core._vmapmode_decrement_nesting()
    return level > 1
