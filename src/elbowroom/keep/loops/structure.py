"""The state of a loop as a flat list of tensors, and back into what the user has."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from elbowroom.errors import InvalidArgument

Build = Callable[[list[Tensor]], Any]


@dataclasses.dataclass(frozen=True)
class Structure:
    """What a value looks like without its tensors; equal for those that look the same."""

    kind: Any
    names: tuple[Any, ...]
    parts: "tuple[Structure, ...]"

    @property
    def count(self) -> int:
        """How many tensors there are."""
        return 1 if self.kind is Tensor else sum(part.count for part in self.parts)

    def build(self, tensors: list[Tensor]) -> Any:
        """The value again, with these tensors."""
        if self.kind is Tensor:
            return tensors[0]
        if self.kind is None:
            return None
        values, start = [], 0
        for part in self.parts:
            values.append(part.build(tensors[start : start + part.count]))
            start += part.count
        make: Any = self.kind
        if dataclasses.is_dataclass(make):
            return make(**dict(zip(self.names, values, strict=True)))  # pyright: ignore[reportCallIssue]
        if self.names:
            return make(zip(self.names, values, strict=True))
        return make(*values) if hasattr(make, "_fields") else make(values)


def flatten(value: Any, where: str) -> tuple[list[Tensor], Structure]:
    """The tensors of a value, and how to put it together again."""
    tensors: list[Tensor] = []
    return tensors, _look(value, where, tensors)


def _look(value: Any, where: str, tensors: list[Tensor]) -> Structure:
    kind = type(value)
    if isinstance(value, Tensor):
        tensors.append(value)
        return _TENSOR
    if value is None:
        return _NONE
    if isinstance(value, Mapping):
        parts = tuple(_look(value[name], f"{where}[{name!r}]", tensors) for name in value)
        return Structure(kind if isinstance(value, dict) else dict, tuple(value), parts)
    if isinstance(value, tuple | list):
        parts = tuple(_look(v, f"{where}[{n}]", tensors) for n, v in enumerate(value))
        return Structure(kind, (), parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value) if field.init)
        parts = tuple(_look(getattr(value, n), f"{where}.{n}", tensors) for n in names)
        return Structure(kind, names, parts)
    raise InvalidArgument(
        f"{where} must be a tensor, or a tuple, list, dict or dataclass of tensors, and is "
        f"{kind.__name__}: make it a tensor, or keep it out of the state"
    )


_TENSOR = Structure(Tensor, (), ())
_NONE = Structure(None, (), ())
