"""A step that is made again must give the state that it gave: some values of it are compared."""

import math
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elbowroom.errors import InvalidArgument
from elbowroom.keep.activations.untouched import is_plain
from elbowroom.keep.loops.slots import Tensors

_SAMPLES = 16
_draw = np.random.RandomState(1)
_WEIGHTS = _draw.uniform(0.5, 1.5, _SAMPLES) * _draw.choice((-1.0, 1.0), _SAMPLES)
_SIZES = np.abs(_WEIGHTS)
_PLAIN = (torch.float32, torch.float64)
_NOTHING = np.zeros(0)


class Prints:
    """One number for each step, of a few values of the state that it gave.

    Steps take turns with tensors and places. Made again with a tape, a step may round otherwise,
    since torch may choose other kernels: half of the digits must agree.
    """

    def __init__(self, explain: Callable[[], str]) -> None:
        """`explain` says what has changed since the loop was called."""
        self._explain = explain
        self._values = array("d")

    def meet(self, number: int, state: Tensors) -> None:
        """Remember the state after a step, or compare it with the one of the first time."""
        known = len(self._values)
        if number > known or not state:
            return
        tensor = state[number % len(state)]
        values = _values_of(tensor, number)
        value = float(values.dot(_WEIGHTS[: len(values)]))
        if number == known:
            self._values.append(value)
            return
        before = self._values[number]
        if value == before or (math.isnan(value) and math.isnan(before)):
            return
        rounding = _digits_of(tensor.dtype) * float(np.abs(values).dot(_SIZES[: len(values)]))
        if not abs(value - before) <= rounding:
            raise InvalidArgument(
                f"step {number} gave another state when it was made again, so that gradients would "
                f"be wrong: {self._explain()}. A step may depend on its arguments, parameters and "
                "torch's random numbers: put what changes from step to step into the state, or "
                "give it as inputs="
            )


def _digits_of(dtype: torch.dtype) -> float:
    is_exact = not (dtype.is_floating_point or dtype.is_complex)
    return 0.0 if is_exact else torch.finfo(dtype).eps ** 0.5


def _values_of(tensor: Tensor, number: int) -> Any:
    """Some of its values, as an array."""
    if tensor.layout != torch.strided or not is_plain(tensor):
        return _NOTHING
    values = _some_of(tensor.detach(), number)
    if tensor.dtype in _PLAIN and not values.is_neg() and values.device.type == "cpu":
        return values.numpy().astype(np.float64)
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj()).flatten()[:_SAMPLES]
    return values.cpu().to(torch.float64).resolve_neg().numpy()


def _some_of(tensor: Tensor, number: int) -> Tensor:
    count = tensor.numel()
    if tensor.is_contiguous():
        if count <= _SAMPLES:
            return tensor.view(-1)
        step = count // _SAMPLES
        # Places wander by steps that have no factor in common with the usual sizes.
        offset = number * 7919 % (count - (_SAMPLES - 1) * step)
        return tensor.view(-1)[offset::step][:_SAMPLES]
    places = (torch.arange(_SAMPLES, device=tensor.device) * 7919 + number * 104729) % max(1, count)
    return torch.take(tensor, places) if count else tensor.reshape(-1)
