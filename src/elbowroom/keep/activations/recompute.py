"""Regions that keep only their input and run again in backward."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from elbowroom.keep.surroundings import buffers_put_back


def candidates(model: nn.Module) -> dict[str, nn.Module]:
    """The members of lists and sequences, outermost first: the blocks that a model repeats."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) < 2:
            continue
        if any(name == known or name.startswith(known + ".") for known in found):
            continue
        for place, child in module.named_children():
            path = f"{name}.{place}" if name else place
            if any(True for _ in child.children()):
                found[path] = child
    return found


@contextmanager
def recomputed(modules: Iterable[nn.Module]) -> Iterator[None]:
    """While it lasts, forwards of these modules are checkpointed."""
    changed: list[nn.Module] = []
    try:
        for module in modules:
            if "forward" in module.__dict__:
                continue
            changed.append(module)
            object.__setattr__(module, "forward", _Region(module, module.forward))
        yield
    finally:
        for module in changed:
            object.__delattr__(module, "forward")


class _Region:
    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        self._module = module
        self._forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        return checkpoint(
            self._forward, *args, use_reentrant=False, context_fn=self._contexts, **kwargs
        )

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), buffers_put_back(self._module)
