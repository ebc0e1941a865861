"""What a step's closure, globals and attributes name, as it was when the loop was called."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elbowroom.codec.checksum import checksum
from elbowroom.keep.loops.traces import Traces
from elbowroom.keep.versions import Watch

# How far things are looked for: through functions that call functions, and what these hold.
_DEPTH = 3
_MOST_ITEMS = 256
_MOST_SUMMED_BYTES = 1 << 20

_OURS = ("torch", "elbowroom", "builtins")


class Name:
    """A name and where it is bound: a cell of a closure, or an entry of a dictionary."""

    __slots__ = ("_key", "_place", "summary", "text", "value")

    def __init__(self, text: str, place: Any, key: str | None, value: Any) -> None:
        self.text, self._place, self._key, self.value = text, place, key, value
        self.summary: Any = summary_of(value)

    def now(self) -> Any:
        """What it names now; itself if nothing."""
        if self._key is not None:
            return self._place.get(self._key, self)
        try:
            return self._place.cell_contents
        except ValueError:
            return self

    def bind(self, value: Any) -> None:
        """Have it name something."""
        if self._key is not None:
            self._place[self._key] = value
        else:
            self._place.cell_contents = value


class Reach:
    """All that a step may get hold of: what it is, is bound to, finds in closures and globals."""

    def __init__(self, *starts: Any) -> None:
        self.modules: list[nn.Module] = []
        self.tensors: list[Tensor] = []
        """Besides those of modules."""
        self.names: list[Name] = []
        self._seen: set[int] = set()
        self._bound: set[tuple[int, str | None]] = set()
        for start in starts:
            self._look(start, _DEPTH)

    def _look(self, value: Any, depth: int) -> None:
        if depth < 0 or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, nn.Module):
            self.modules.append(value)
            for part in value.modules():
                self._bind_attributes(part)
            return
        if isinstance(value, Tensor):
            self.tensors.append(value)
            return
        for inner in self._held_by(value):
            self._look(inner, depth - 1)

    def _held_by(self, value: Any) -> Iterator[Any]:
        if isinstance(value, FunctionType):
            if value.__module__.partition(".")[0] != "torch":  # which keeps no statistics
                yield from self._named_in(value)
        elif isinstance(value, partial):
            yield from (value.func, *value.args, *value.keywords.values())
        elif isinstance(value, MethodType):
            yield value.__func__
            yield from (value.__self__, *self._bind_attributes(value.__self__))
        elif isinstance(value, Mapping) and len(value) <= _MOST_ITEMS:
            yield from value.values()
        elif isinstance(value, list | tuple | set) and len(value) <= _MOST_ITEMS:
            yield from value
        elif is_dataclass(value) and not isinstance(value, type):
            yield from (getattr(value, field.name, None) for field in fields(value))
        elif callable(value) and not isinstance(value, type):
            yield from self._bind_attributes(value)

    def _bind_attributes(self, value: Any) -> list[Any]:
        """Of an object that keeps them in the usual place."""
        if isinstance(value, type | ModuleType | FunctionType):
            return []
        held: dict[str, Any] = getattr(value, "__dict__", {})
        if type(value).__module__.partition(".")[0] != "elbowroom":
            for name, inner in list(held.items()):
                # What a module of torch has besides belongs to torch.
                if not (isinstance(value, nn.Module) and name.startswith("_")):
                    self._add(f"{type(value).__name__}.{name}", held, name, inner)
        return list(held.values())

    def _add(self, text: str, place: Any, key: str | None, value: Any) -> None:
        mark = id(place), key
        if mark not in self._bound and not isinstance(value, type | ModuleType):
            self._bound.add(mark)
            self.names.append(Name(text, place, key, value))

    def _named_in(self, function: Callable[..., Any]) -> Iterator[Any]:
        """Values of a closure, defaults, and globals that a function's code names."""
        code: Any = getattr(function, "__code__", None)
        scope: dict[str, Any] = getattr(function, "__globals__", {})
        is_ours = str(function.__module__).partition(".")[0] in _OURS
        cells = getattr(function, "__closure__", None) or ()
        for text, cell in zip(code.co_freevars, cells, strict=False):
            try:
                value = cell.cell_contents
            except ValueError:
                continue  # a name that has no value yet
            if not is_ours:
                self._add(text, cell, None, value)
            yield value
        yield from getattr(function, "__defaults__", None) or ()
        yield from (getattr(function, "__kwdefaults__", None) or {}).values()
        for name in _names_of(code):
            if name in scope:
                if not is_ours:
                    self._add(name, scope, name, scope[name])
                yield scope[name]
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            yield wrapped


class Surroundings:
    """Names and tensors that are to be found again, and what is said if they are not."""

    def __init__(self, reach: Reach, tensors: Sequence[Tensor]) -> None:
        """`tensors` are those of them that nobody may change between forward and backward."""
        self._names = reach.names
        self._bound = reach.names
        self._tensors = tensors
        self._watches: list[Watch] = []
        self._drawn = _generators()

    def watch(self, is_moving: Callable[[Tensor], bool]) -> None:
        """The loop has ended: from now on nobody may change a tensor in place.

        But for those that the step itself changes; and names that it has bound anew are its own.
        """
        self._bound = [n for n in self._bound if n.now() is n.value]
        self._watches = [
            Watch(t) for t in self._tensors if not t.is_inference() and not is_moving(t)
        ]

    def check(self) -> None:
        """Raise what autograd would."""
        for watch in self._watches:
            watch.check()

    @contextmanager
    def put_in(self) -> Iterator[None]:
        """Names name inside of the block what they named when the loop was called."""
        changed = [
            (n, now) for n in self._bound if (now := n.now()) is not n.value and now is not n
        ]
        try:
            for name, _ in changed:
                name.bind(name.value)
            yield
        finally:
            for name, now in changed:
                name.bind(now)

    @contextmanager
    def left_alone(self) -> Iterator[Callable[[], None]]:
        """Steps inside of the block leave nothing behind in Python, as far as that can be told."""
        traces = Traces(n.value for n in self._names)
        before = [(n, now) for n in self._names if (now := n.now()) is not n]

        def take_away() -> None:
            traces.take_away()
            for name, value in before:
                if name.now() is not value:
                    name.bind(value)

        try:
            yield take_away
        finally:
            take_away()

    def explain(self) -> str:
        """What is not as it was when the loop was called."""
        found = [n for n in self._names if (now := n.now()) is not n and _differs(n, now)]
        if found:
            first, now = found[0], found[0].now()
            more = f" (and {', '.join(n.text for n in found[1:4])})" if len(found) > 1 else ""
            plain = int | float | str
            if isinstance(first.value, plain) and isinstance(now, plain):
                return f"{first.text}{more} was {first.value!r} when the loop was called, " + (
                    f"and is {now!r}"
                )
            return f"{first.text}{more} has changed since the loop was called"
        drawn = [name for name, one in _generators().items() if self._drawn.get(name) != one]
        if drawn:
            return f"{' and '.join(drawn)} were drawn from, and are not drawn again the same"
        return "it depends on something besides, such as a file, a clock or an iterator"


def summary_of(value: Any) -> Any:
    """What to know a value by, if it changes without being another one."""
    if value is None or isinstance(value, int | float | str | bool):
        return repr(value)
    if isinstance(value, Tensor):
        return None if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        small = value.nbytes <= _MOST_SUMMED_BYTES and value.dtype.hasobject is False
        return checksum(np.ascontiguousarray(value).tobytes()) if small else None
    if isinstance(value, torch.Generator):
        return checksum(value.get_state().numpy().tobytes())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return _state_of(value)
    if isinstance(value, random.Random):
        return hash(value.getstate())
    if isinstance(value, list | tuple | set | dict) and len(value) <= _MOST_ITEMS:
        inner = list(value.values()) if isinstance(value, dict) else list(value)
        plain = [v if isinstance(v, int | float | str) else id(v) for v in inner]
        return tuple(plain)
    return None


def _differs(name: Name, now: Any) -> bool:
    if now is not name.value and not isinstance(now, int | float | str):
        return True
    return summary_of(now) != name.summary


def _state_of(generator: Any) -> Any:
    _, words, *rest = generator.get_state()
    return checksum(words.tobytes()), *rest


def _generators() -> dict[str, Any]:
    """Where random numbers stand that torch knows nothing of."""
    mersenne: Any = np.random.mtrand._rand  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "numpy's random numbers": _state_of(mersenne),
        "Python's random numbers": hash(random.getstate()),
    }


def _names_of(code: CodeType | None) -> Iterable[str]:
    """Of a function, and of those that are written inside of it."""
    if code is None:
        return ()
    found = dict.fromkeys(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= dict.fromkeys(_names_of(inner))
    return found
