"""What a step finds around it besides its arguments, and finds again when it is made again."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from elbowroom.keep.surroundings import random_state, set_random_state

# How far modules are looked for: through functions that call functions, and what these hold.
_DEPTH = 3
_MOST_ITEMS = 256

# Of a buffer; statistics have a number for each channel.
_SMALL_BYTES = 1 << 20


class Autocast:
    """Autocast as it was when the loop was called; backward is called outside of it, as a rule.

    Without its cache: a weight that is cast in a step without a tape would be taken from there by
    steps with one, and by what the user runs after the loop, and no gradient would come to it.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        kinds = sorted({"cpu", *(t.device.type for t in tensors)})
        self._kinds = [kind for kind in kinds if torch.amp.is_autocast_available(kind)]
        self._dtypes = {
            kind: torch.get_autocast_dtype(kind)
            for kind in self._kinds
            if torch.is_autocast_enabled(kind)
        }

    @property
    def key(self) -> tuple[Any, ...]:
        """What it was."""
        return tuple(self._dtypes.items())

    @property
    def is_needed(self) -> bool:
        """Whether anything is to be switched on or off."""
        return bool(self._dtypes) or any(torch.is_autocast_enabled(kind) for kind in self._kinds)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The same as then."""
        with ExitStack() as stack:
            for kind in self._kinds:
                is_on = kind in self._dtypes
                if is_on or torch.is_autocast_enabled(kind):
                    dtype = self._dtypes.get(kind)
                    stack.enter_context(
                        torch.autocast(kind, dtype=dtype, enabled=is_on, cache_enabled=False)
                    )
            yield


class Statistics:
    """Buffers of modules, such as running means, which a step may change on its way."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        buffers = {id(b): b for module in modules for b in module.buffers()}
        self._buffers = [(b, b._version) for b in buffers.values()]
        self._is_settled = False

    def settle(self) -> None:
        """A step was made: a large buffer that nobody has changed since is a constant.

        Of small ones nobody can tell: a norm of batches changes its means and counts no version.
        """
        self._is_settled = True

    def copy(self) -> list[tuple[Tensor, Tensor, int]]:
        """Those that may change, with their values and versions."""
        return [
            (b, b.detach().clone(), b._version)
            for b, version in self._buffers
            if not self._is_settled or b._version != version or b.nbytes < _SMALL_BYTES
        ]

    @staticmethod
    def restore(copies: list[tuple[Tensor, Tensor, int]]) -> None:
        """Give them their values again."""
        with torch.no_grad():
            for buffer, value, version in copies:
                if buffer._version != version or buffer.nbytes < _SMALL_BYTES:
                    buffer.copy_(value)


class Members:
    """What modules have now: parameters and buffers, and whether they are in training.

    `torch.func.functional_call` gives them others for the time of a call.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        parts = {id(part): part for module in modules for part in module.modules()}
        self._held: list[tuple[dict[str, Any], str, Any]] = [
            (names, name, value)
            for part in parts.values()
            for names in (part._parameters, part._buffers)
            for name, value in names.items()
        ]
        self._held += [(vars(part), "training", part.training) for part in parts.values()]

    @contextmanager
    def put_in(self) -> Iterator[None]:
        """The modules have the same inside of the block."""
        changed = [
            (names, name, value, names[name])
            for names, name, value in self._held
            if name in names and names[name] is not value
        ]
        try:
            for names, name, value, _ in changed:
                names[name] = value
            yield
        finally:
            for names, name, _, other in changed:
                names[name] = other


class Conditions:
    """All of it, as it was when the loop was called."""

    def __init__(self, step: Callable[..., Any], named: Any, tensors: Iterable[Tensor]) -> None:
        """`named` is what the user has given as parameters, which may be modules."""
        modules = reachable_modules(step, named)
        self.autocast = Autocast(tensors)
        self.statistics = Statistics(modules)
        self._members = Members(modules)
        self._random = random_state()
        flags = tuple(inner.training for module in modules for inner in module.modules())
        self.key = self.autocast.key, flags
        """What a step may do otherwise in another call."""

    def rewind(self) -> None:
        """Random numbers are drawn from where they were."""
        set_random_state(self._random)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """What happens inside of the block leaves no trace in statistics and random numbers.

        Modules have what they had.
        """
        before, random = self.statistics.copy(), random_state()
        try:
            with self._members.put_in():
                yield
        finally:
            set_random_state(random)
            self.statistics.restore(before)


def reachable_modules(*starts: Any) -> list[nn.Module]:
    """Modules that a step may call: what it is, is bound to, or finds in closures and globals."""
    found: dict[int, nn.Module] = {}
    seen: set[int] = set()
    for start in starts:
        _reach(start, _DEPTH, found, seen)
    return list(found.values())


def _reach(value: Any, depth: int, found: dict[int, nn.Module], seen: set[int]) -> None:
    if depth < 0 or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        found[id(value)] = value
        return
    for inner in _held_by(value):
        _reach(inner, depth - 1, found, seen)


def _held_by(value: Any) -> Iterator[Any]:
    if isinstance(value, FunctionType):
        if value.__module__.partition(".")[0] != "torch":  # which keeps no statistics of its own
            yield from _named_in(value)
    elif isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType):
        yield value.__func__
        yield from (value.__self__, *_attributes(value.__self__))
    elif isinstance(value, Mapping) and len(value) <= _MOST_ITEMS:
        yield from value.values()
    elif isinstance(value, list | tuple | set) and len(value) <= _MOST_ITEMS:
        yield from value
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (getattr(value, field.name, None) for field in fields(value))
    elif callable(value) and not isinstance(value, type):
        yield from _attributes(value)


def _attributes(value: Any) -> Iterable[Any]:
    """Of an object that keeps them in the usual place."""
    return getattr(value, "__dict__", {}).values()


def _named_in(function: Callable[..., Any]) -> Iterator[Any]:
    """Values of a closure, defaults, and globals that a function's code names."""
    code: Any = getattr(function, "__code__", None)
    scope: dict[str, Any] = getattr(function, "__globals__", {})
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # a name that has no value yet
    yield from getattr(function, "__defaults__", None) or ()
    yield from (getattr(function, "__kwdefaults__", None) or {}).values()
    yield from (scope[name] for name in getattr(code, "co_names", ()) if name in scope)
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield wrapped
