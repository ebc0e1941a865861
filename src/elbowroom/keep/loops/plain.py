"""A for-loop: what all others are compared with, and what runs where nothing need be bounded."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import forward_ad

from elbowroom.keep.loops.body import Body, Stack, Tensors, stacked
from elbowroom.keep.loops.replay import Until

_GROUP = 64


def run_plainly(
    body: Body, state: Tensors, inputs: Tensors, length: int | None, until: Until | None
) -> tuple[Tensors, Tensors]:
    """A for-loop."""
    given = _slices_of(inputs)
    held: list[Tensors] = []
    # Outputs may have tangents or more dimensions, which a copy into a larger tensor would lose.
    is_taped = torch.is_grad_enabled() or is_transformed()
    stack = Stack(length if until is None else None)
    number = 0
    value = body.structure.build(state)
    while length is None or number < length:
        value = body.call(value, next(given), number)
        if body.has_outputs:
            value, outputs = body.part(value, number)
            held.append(outputs) if is_taped else stack.add(outputs)
        if number == 0:
            body.take(value, number)
        number += 1
        if until is not None:
            with torch.no_grad():
                if bool(until(value)):
                    break
    state = body.take(value, number)
    if not is_taped:
        return state, stack.tensors()
    return state, stacked(held)


def _slices_of(inputs: Tensors) -> Iterator[Tensors]:
    """What each step gets of the inputs; taken by the group, which is faster than one by one."""
    if not inputs:
        while True:
            yield []
    length = min(map(len, inputs))
    # Gradients come back through one node, however many steps there are.
    whole = {number: x.unbind() for number, x in enumerate(inputs) if x.requires_grad}
    for start in range(0, length, _GROUP):
        end = min(start + _GROUP, length)
        parts = [
            whole[number][start:end] if number in whole else x[start:end].unbind()
            for number, x in enumerate(inputs)
        ]
        yield from map(list, zip(*parts, strict=True))


def is_transformed() -> bool:
    """Inside of torch.func or forward mode, which see through plain loops only.

    Whatever the step uses may be part of that, and not only what is named.
    """
    core: Any = torch._C
    return forward_ad._current_level >= 0 or core._functorch.peek_interpreter_stack() is not None
