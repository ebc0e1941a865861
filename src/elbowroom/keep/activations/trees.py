"""Tensors in nested structures."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def tensors_in(value: Any, depth: int = 4) -> list[Tensor]:
    """Tensors in nested tuples, lists, dicts and objects with fields, such as model outputs."""
    if isinstance(value, Tensor):
        return [value]
    if depth == 0 or value is None or isinstance(value, str | int | float | bool):
        return []
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        value = getattr(value, "__dict__", {}).values()
    return [tensor for part in value for tensor in tensors_in(part, depth - 1)]


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """The same structure of tuples, lists and dicts with every tensor replaced."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(function, part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [map_tensors(function, part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value
