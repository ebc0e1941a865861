"""Which hooks saved tensors pass through at this moment."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def top_hooks() -> tuple[Any, Any] | None:
    """The innermost pair in this thread."""
    core: Any = torch._C
    return core._autograd._top_saved_tensors_default_hooks(True)


def are_on_top(pack: Any) -> bool:
    """Whether saved tensors come to these, and not to hooks inside, such as a checkpoint's."""
    hooks = top_hooks()
    return hooks is not None and hooks[0] == pack


class Around:
    """Hooks for saved tensors around a forward, which can be taken off before it is over."""

    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        self._pack = pack
        self._hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
        self._is_on = False

    def __enter__(self) -> None:
        self._hooks.__enter__()
        self._is_on = True

    def __exit__(self, *ending: Any) -> None:
        if self._is_on:
            self._is_on = False
            self._hooks.__exit__(*ending)

    def leave(self) -> bool:
        """Take them off, unless others are inside of them; whether that was done."""
        if self._is_on and are_on_top(self._pack):
            self.__exit__(None, None, None)
        return not self._is_on


def is_recomputed() -> bool:
    """Inside a checkpointed region: its own hooks drop everything, ours would keep it."""
    hooks = top_hooks()
    return hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint"
