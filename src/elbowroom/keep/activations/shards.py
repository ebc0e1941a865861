"""The tensors that a forward really works with, where parameters are sharded (FSDP2).

A sharded model lists parts of its parameters. For a forward they are gathered into whole ones, to
which backward brings the gradient of this process's batch, before it is averaged over processes:
the same that a parameter of an ordinary model sees.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn


def working_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Parameters, and for those that are sharded what they were gathered into, if ever."""
    is_sharded = False
    for parameter in model.parameters():
        if type(parameter) is nn.Parameter:
            yield parameter
        else:
            is_sharded = True
    if is_sharded:
        for module in model.modules():
            yield from _gathered(module)


def _gathered(module: nn.Module) -> Iterator[nn.Parameter]:
    state_of: Any = getattr(module, "_get_fsdp_state", None)
    if state_of is None:
        return
    for group in state_of()._fsdp_param_groups:
        for held in group.fsdp_params:
            whole = getattr(held, "_unsharded_param", None)
            if type(whole) is nn.Parameter:
                yield whole


class Gradients:
    """Hooks that tell of every parameter's gradient as it arrives."""

    def __init__(self, observe: Callable[[nn.Parameter, Tensor], None]) -> None:
        self._observe = observe
        self._handles: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._handles)

    def watch(self, model: nn.Module) -> None:
        """Those of the model that are not watched yet."""
        for parameter in working_parameters(model):
            if parameter.requires_grad and id(parameter) not in self._handles:
                handle = parameter.register_hook(partial(self._observe, parameter))
                self._handles[id(parameter)] = handle

    def remove(self) -> None:
        """Take all of them off."""
        for handle in self._handles.values():
            handle.remove()
        self._handles = {}
