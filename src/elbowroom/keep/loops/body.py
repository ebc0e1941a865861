"""The user's step as a function of flat lists of tensors."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from elbowroom.errors import InvalidArgument
from elbowroom.keep.loops.conditions import Conditions
from elbowroom.keep.loops.parameters import (
    edges_of,
    look_at_graph,
    refuse_forgotten,
    sequence_number,
)
from elbowroom.keep.loops.prints import Prints
from elbowroom.keep.loops.structure import Static, Structure, flatten

# What torch and Python need for a node of a graph, with what autograd saves in it: measured.
NODE_BYTES = 700

Tensors = list[Tensor]
Grads = list[Tensor | None]
Targets = list[tuple[Tensor, Tensor | None]]
"""What a step has made, with the gradient that comes to it."""


class Inputs:
    """What each step is given besides the state: slices of tensors, or items of a sequence."""

    def __init__(self, given: Any) -> None:
        self.given = given
        self.tensors: Tensors = []
        self._structure: Structure | None = None
        self._sequence: Sequence[Any] | None = None
        if given is None:
            return
        if isinstance(given, Iterator):
            raise InvalidArgument(
                "inputs is a generator, and steps that are made again need theirs again: make a "
                "list of it, list(inputs), or one tensor, torch.stack(list(inputs))"
            )
        if isinstance(given, Sequence) and not isinstance(given, tuple):
            self._sequence = given
            if any(isinstance(item, Tensor) and item.requires_grad for item in given):
                raise InvalidArgument(
                    "inputs is a list with tensors that require gradients: make one tensor of "
                    "them, torch.stack(inputs), whose first dimension counts the steps"
                )
            return
        self.tensors, self._structure = flatten(given, "inputs")
        for tensor in self.tensors:
            if tensor.dim() == 0:
                raise InvalidArgument(
                    "inputs must have a first dimension that counts the steps, got a scalar"
                )

    @property
    def length(self) -> int | None:
        """For how many steps they last; None if there are none."""
        if self._sequence is not None:
            return len(self._sequence)
        return min((len(tensor) for tensor in self.tensors), default=None)

    def arguments(self, slices: Tensors, number: int) -> tuple[Any, ...]:
        """What follows the state in a call of the step."""
        if self._sequence is not None:
            return (self._sequence[number],)
        return () if self._structure is None else (self._structure.build(slices),)


class Body:
    """One step, from tensors to tensors; looks at what it does to them."""

    conditions: Conditions
    """That every step finds; there are none in a plain loop."""

    prints: Prints | None = None
    """Of the states that steps have given, once they are made for good."""

    def __init__(
        self, step: Callable[..., Any], structure: Structure, inputs: Inputs, *, has_outputs: bool
    ) -> None:
        self.step = step
        self.structure = structure
        self.inputs = inputs
        self.has_outputs = has_outputs
        self.output_structure: Structure | None = None
        self.is_in_place = False
        self.taped_bytes = 0
        """What a step takes on a tape at most, once one was seen; 0 if it was not."""
        self.known: Tensors | None = None
        """Parameters that gradients flow to; None if that need not be checked."""
        self._shared: set[tuple[int, int]] | None = None
        self._wants_number = inputs.given is None and _takes_two(step)

    def run(self, state: Tensors, slices: Tensors, number: int) -> tuple[Tensors, Tensors]:
        """Make a step: the state after it, and its outputs."""
        versions = [tensor._version for tensor in state]
        taken = [tensor._version for tensor in slices]
        autocast = self.conditions.autocast
        if autocast.is_needed:
            with autocast.applied():
                result = self.call(self.structure.build(state), slices, number)
        else:
            result = self.call(self.structure.build(state), slices, number)
        if any(t._version != v for t, v in zip(state, versions, strict=True)):
            self.is_in_place = True
        if any(t._version != v for t, v in zip(slices, taken, strict=True)):
            raise InvalidArgument(
                f"step {number} changes its input in place, and would find it changed when it is "
                "made again: change a copy of it, input.clone()"
            )
        outputs: Tensors = []
        if self.has_outputs:
            result, outputs = self.part(result, number)
        after = self.take(result, number)
        if self.prints is not None:
            self.prints.meet(number, after)
        if outputs and self._shared != set():
            same = {(k, n) for k, t in enumerate(outputs) for n, s in enumerate(after) if t is s}
            self._shared = same if self._shared is None else self._shared & same
        return after, outputs

    @property
    def shared(self) -> list[tuple[int, int]]:
        """Outputs that are tensors of the state in every step: the number of either, in order."""
        return sorted(self._shared or ())

    def pull(
        self, leaves: Tensors, slices: Tensors, number: int, grads: Grads, output_grads: Grads
    ) -> Targets | None:
        """A shorter way to take gradients back over one step, if there is one."""
        return None

    def call(self, state: Any, slices: Tensors, number: int) -> Any:
        """Make a step of the user's own state, with nothing around it."""
        if self._wants_number:
            return self.step(state, number)
        return self.step(state, *self.inputs.arguments(slices, number))

    def take(self, state: Any, number: int) -> Tensors:
        """The tensors of a state that a step has returned."""
        tensors, found = flatten(state, "the step's state", self.structure)
        self._check(found, self.structure, "a state", number)
        return tensors

    def part(self, result: Any, number: int) -> tuple[Any, Tensors]:
        """The state, and the tensors of the outputs."""
        if not isinstance(result, tuple) or len(result) != 2:
            raise InvalidArgument(
                "with outputs=True the step must return (state, output), and it returned "
                f"{type(result).__name__} in step {number}: return both, or leave outputs out"
            )
        state, output = result
        outputs, found = flatten(output, "the step's output", self.output_structure)
        if self.output_structure is None:
            self.output_structure = found
        self._check(found, self.output_structure, "an output", number)
        return state, outputs

    def run_first(self, state: Tensors, slices: Tensors, number: int) -> tuple[Tensors, Tensors]:
        """A step that shows whether all that it differentiates is known; gradients stay behind."""
        if self.known is None:
            return self.run(state, slices, number)
        with torch.enable_grad():
            since = sequence_number()
            leaves = leaves_of(state)
            takes = leaves_of(slices)
            # Not the leaves themselves: a step may change its state in place.
            begin, given = [t.clone() for t in leaves], [t.clone() for t in takes]
            after, outputs = self.run(begin, given, number)
            known = edges_of([*leaves, *takes, *self.known])
            refuse_forgotten([*after, *outputs], known, self.step, since)
            nodes, made = look_at_graph([*after, *outputs], known)
            self.taped_bytes = made + nodes * NODE_BYTES
        return [t.detach() for t in after], [t.detach() for t in outputs]

    def slices(self, tensors: Tensors, number: int) -> Tensors:
        """What a step gets of the inputs."""
        return [tensor[number] for tensor in tensors]

    @staticmethod
    def _check(found: Structure, known: Structure, what: str, number: int) -> None:
        if found != known:
            raise InvalidArgument(
                f"step {number} returned {what} of another structure than before "
                f"({say(found)} in place of {say(known)}): return the same kinds and names in "
                "every step"
            )


def say(structure: Structure) -> str:
    """A structure in words."""
    if structure.kind is Tensor or structure.kind is None:
        return "a tensor" if structure.kind else "None"
    if structure.kind is Static:
        return repr(structure.names[0])
    names = f" of {', '.join(map(str, structure.names))}" if structure.names else ""
    return f"a {structure.kind.__name__}{names or f' of {len(structure.parts)}'}"


def _takes_two(step: Callable[..., Any]) -> bool:
    """Whether a step has a second argument without a default: it wants to know its number."""
    try:
        names = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return False
    plain = [p for p in names if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(plain) > 1 and plain[1].default is inspect.Parameter.empty


def leaves_of(tensors: Tensors) -> Tensors:
    """The same values where a graph begins; what can have no gradient stays as it is."""
    return [t.detach().requires_grad_(is_differentiable(t)) for t in tensors]


def is_differentiable(tensor: Tensor) -> bool:
    """Whether a tensor of its type can have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


class Stack:
    """Outputs of all steps, along a new first dimension."""

    def __init__(self, length: int | None) -> None:
        self._length = length
        self._held: list[Tensors] = []
        self._whole: Tensors = []
        self._count = 0

    def add(self, outputs: Tensors) -> None:
        """Those of the next step."""
        number, self._count = self._count, self._count + 1
        if self._length is None:
            self._held.append([t.detach().clone() for t in outputs])
            return
        if number == 0:
            self._whole = [t.new_empty((self._length, *t.shape)) for t in outputs]
        for whole, tensor in zip(self._whole, outputs, strict=True):
            if whole.shape[1:] != tensor.shape or whole.dtype != tensor.dtype:
                raise _other_shape(tensor, whole[0], number)
            whole[number] = tensor.detach()

    def tensors(self) -> Tensors:
        """All of them."""
        if self._length is None:
            return stacked(self._held)
        return self._whole


def stacked(held: list[Tensors]) -> Tensors:
    """Outputs of all steps along a new first dimension, differentiably."""
    for number, outputs in enumerate(held):
        for tensor, first in zip(outputs, held[0], strict=True):
            if tensor.shape != first.shape or tensor.dtype != first.dtype:
                raise _other_shape(tensor, first, number)
    return [torch.stack(list(one)) for one in zip(*held, strict=True)]


def _other_shape(tensor: Tensor, first: Tensor, number: int) -> InvalidArgument:
    return InvalidArgument(
        f"outputs must have the same shape and type in every step, got {list(tensor.shape)} of "
        f"{tensor.dtype} in step {number} in place of {list(first.shape)} of {first.dtype}"
    )
