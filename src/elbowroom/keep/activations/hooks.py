"""Which hooks saved tensors pass through at this moment."""

from typing import Any

import torch


def top_hooks() -> tuple[Any, Any] | None:
    """The innermost pair in this thread."""
    core: Any = torch._C
    return core._autograd._top_saved_tensors_default_hooks(True)


def are_on_top(pack: Any) -> bool:
    """Whether saved tensors come to these, and not to hooks inside, such as a checkpoint's."""
    hooks = top_hooks()
    return hooks is not None and hooks[0] == pack


def is_recomputed() -> bool:
    """Inside a checkpointed region: its own hooks drop everything, ours would keep it."""
    hooks = top_hooks()
    return hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint"
