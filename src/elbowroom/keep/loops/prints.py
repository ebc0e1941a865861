"""A step that is made again must give the state that it gave: some values of it are compared."""

import math
from array import array
from collections.abc import Callable

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
        value, off = _print_of(tensor, number)
        if number == known:
            self._values.append(value)
            return
        before = self._values[number]
        if value == before or (math.isnan(value) and math.isnan(before)):
            return
        if not abs(value - before) <= off:
            raise InvalidArgument(
                f"step {number} gave another state when it was made again, so that gradients would "
                f"be wrong: {self._explain()}. A step may depend on its arguments, parameters and "
                "torch's random numbers: put what changes from step to step into the state, or "
                "give it as inputs="
            )


def _print_of(tensor: Tensor, number: int) -> tuple[float, float]:
    """A weighted sum of some values, and how far rounding may move it."""
    if not is_plain(tensor):
        return 0.0, 0.0
    values = _some_of(tensor.detach(), number)
    dtype = values.dtype
    share = torch.finfo(dtype).eps ** 0.5 if dtype.is_floating_point or dtype.is_complex else 0.0
    if dtype.is_complex:
        values = torch.view_as_real(values.resolve_conj()).flatten()[:_SAMPLES]
    if dtype == torch.bfloat16 or values.device.type != "cpu" or values.is_neg():
        values = values.cpu().to(torch.float64).resolve_neg()
    found = values.numpy().astype(np.float64)
    with np.errstate(all="ignore"):
        total = float(found @ _WEIGHTS[: len(found)])
        return total, share * float(np.abs(found) @ _SIZES[: len(found)]) if share else 0.0


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
