"""Tensors that stand for others in a node of backward: the dispatcher asks us what to do with them.

No node, no graph and nothing global is changed that way.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

Way = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class StandIn(Tensor):
    """Has the shape and type of what it stands for; operations that know no way get that itself."""

    make: Callable[[], Tensor]
    """What it stands for."""

    ways: ClassVar[Mapping[Any, Way]] = {}
    """By operation: given the stand-in and all arguments; None where it cannot help after all."""

    # Torch's own way to say that functions need not ask; its stubs do not know it.
    __torch_function__: Any = torch._C._disabled_torch_function_impl  # pyright: ignore[reportIncompatibleMethodOverride]

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called by the dispatcher for any operation on it."""
        kwargs = kwargs or {}
        given = [a for a in args if isinstance(a, StandIn)]
        way = given[0].ways.get(function) if len(given) == 1 else None
        if way is not None:
            found = way(given[0], args, kwargs)
            if found is not None:
                return found
        return function(*_whole(args), **_whole(kwargs))


def _whole(argument: Any) -> Any:
    if isinstance(argument, StandIn):
        return argument.make()
    if isinstance(argument, list | tuple):
        return [_whole(each) for each in argument]
    if isinstance(argument, dict):
        return {name: _whole(each) for name, each in argument.items()}
    return argument
