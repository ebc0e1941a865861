"""Tensors that stand for others in a node of backward: the dispatcher asks us what to do with them.

No node, no graph and nothing global is changed that way.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from elbowroom.keep.activations.faults import Faults

Way = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class StandIn(Tensor):
    """Has the shape and type of what it stands for; operations that know no way get that itself."""

    make: Callable[[], Tensor]
    """What it stands for."""

    again: Callable[[], Tensor]
    """The same anew, where a way has failed that may have written over it."""

    faults: Faults

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
        if way is None:
            return function(*_whole(args, _make), **_whole(kwargs, _make))

        def by_the_way() -> Any:
            found = way(given[0], args, kwargs)
            return plainly(_make) if found is None else found

        def plainly(make: Callable[[StandIn], Tensor] = _make_again) -> Any:
            return function(*_whole(args, make), **_whole(kwargs, make))

        what = "an operation of backward was done plainly, since its own way"
        return given[0].faults.attempt(what, by_the_way, plainly)


def _make(given: StandIn) -> Tensor:
    return given.make()


def _make_again(given: StandIn) -> Tensor:
    return given.again()


def _whole(argument: Any, make: Callable[[StandIn], Tensor]) -> Any:
    if isinstance(argument, StandIn):
        return make(argument)
    if isinstance(argument, list | tuple):
        return [_whole(each, make) for each in argument]
    if isinstance(argument, dict):
        return {name: _whole(each, make) for name, each in argument.items()}
    return argument
