"""The state of a loop as a flat list of tensors, and back into what the user has."""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from elbowroom.errors import InvalidArgument

Build = Callable[[list[Tensor]], Any]


class Static:
    """What a state has besides tensors, and what stays the same: its value is the only name."""


_STATICS = (str, bytes, int, float, complex, Enum, torch.dtype, torch.device, torch.Size)


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
        if self.kind is Static:
            return self.names[0]
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


def flatten(
    value: Any, where: str, like: Structure | None = None
) -> tuple[list[Tensor], Structure]:
    """The tensors of a value, and how to put it together again.

    Names of dicts are taken in the order of `like`, where they are the same.
    """
    tensors: list[Tensor] = []
    return tensors, _look(value, where, tensors, like, is_inside=False)


def _look(
    value: Any,
    where: str,
    tensors: list[Tensor],
    like: Structure | None,
    *,
    is_inside: bool = True,
) -> Structure:
    kind = type(value)
    if isinstance(value, Tensor):
        tensors.append(value)
        return _TENSOR
    if value is None:
        return _NONE
    if isinstance(value, Mapping):
        is_known = like is not None and set(like.names) == set(value)
        names = like.names if like is not None and is_known else tuple(value)
        parts = tuple(
            _look(value[name], f"{where}[{name!r}]", tensors, _part(like, n))
            for n, name in enumerate(names)
        )
        # Others, such as a defaultdict, are not made from pairs alone.
        is_made = kind in (dict, OrderedDict) or dataclasses.is_dataclass(kind)
        return Structure(kind if is_made else dict, names, parts)
    if isinstance(value, tuple | list):
        parts = tuple(
            _look(v, f"{where}[{n}]", tensors, _part(like, n)) for n, v in enumerate(value)
        )
        return Structure(kind, (), parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value) if field.init)
        parts = tuple(
            _look(getattr(value, name), f"{where}.{name}", tensors, _part(like, n))
            for n, name in enumerate(names)
        )
        return Structure(kind, names, parts)
    if isinstance(value, _STATICS) and is_inside:
        return _static(value, where, like)
    raise InvalidArgument(
        f"{where} must be a tensor, or a tuple, list, dict or dataclass of tensors, and is "
        f"{kind.__name__}: make it a tensor, or leave it out"
    )


def _static(value: Any, where: str, like: Structure | None) -> Structure:
    if like is not None and like.kind is Static and like.names != (value,):
        raise InvalidArgument(
            f"{where} is no tensor, and a step changes it from {like.names[0]!r} to {value!r}: "
            "make it a tensor, or let the step take its number as a second argument"
        )
    return Structure(Static, (value,), ())


def _part(like: Structure | None, number: int) -> Structure | None:
    return like.parts[number] if like is not None and number < len(like.parts) else None


_TENSOR = Structure(Tensor, (), ())
_NONE = Structure(None, (), ())
