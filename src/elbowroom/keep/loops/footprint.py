"""How many bytes of tensors a computation has at once, at most."""

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Footprint(TorchDispatchMode):
    """Counts storages that operations make inside of the block, from their making to their end."""

    def __init__(self) -> None:
        super().__init__()
        self._live = 0
        self.peak_bytes = 0
        self._known: dict[int, Any] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Torch would load its compiler for that: a second, and 50 MB that count as the loop's.
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and look at what it has made."""
        given = {_address(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and _address(tensor) not in given:
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        address = _address(tensor)
        if not address or address in self._known:
            return
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        self._live += nbytes
        self.peak_bytes = max(self.peak_bytes, self._live)
        self._known[address] = weakref.finalize(storage, self._drop, address, nbytes)

    def _drop(self, address: int, nbytes: int) -> None:
        self._live -= nbytes
        self._known.pop(address, None)


def _address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        return 0  # sparse and the like have none
