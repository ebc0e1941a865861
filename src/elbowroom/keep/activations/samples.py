"""A part of a batch: which axis of a tensor counts the samples, and the first few of them."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from elbowroom.keep.activations.trees import tensors_in
from elbowroom.keep.activations.untouched import is_plain

# The samples stand on one of the first two axes.
_AXES = 2
_DEPTH = 6
# Fewer are not run in halves.
_HALVED = 4


class Uncuttable(Exception):
    """The samples of a call cannot be told apart."""


@dataclass(frozen=True, slots=True)
class Part:
    """The first samples of a batch."""

    batch: int
    count: int
    axis: int = 0
    """Where the samples are, unless a tensor has another size there."""

    counts_in_numbers: bool = False
    """Whether whole numbers of the batch's size stand for that size."""

    start: int = 0
    """How many samples are left out before."""

    @property
    def share(self) -> float:
        """Of the batch."""
        return self.count / self.batch

    def axis_of(self, tensor: Tensor) -> int | None:
        """Of the samples; None where the tensor has none, as a loss or a table."""
        sizes = tensor.shape[:_AXES]
        if self.axis < len(sizes) and sizes[self.axis] == self.batch:
            return self.axis
        return next((axis for axis, size in enumerate(sizes) if size == self.batch), None)

    def of(self, tensor: Tensor) -> Tensor:
        """The tensor's part: a view."""
        axis = self.axis_of(tensor)
        return tensor if axis is None else tensor.narrow(axis, self.start, self.count)

    def of_output(self, tensor: Tensor) -> Tensor:
        """The same of what a model gave, where each sample may have several rows."""
        if self.axis_of(tensor) is not None or self.is_sum(tensor):
            return self.of(tensor)
        rows = tensor.shape[0] // self.batch
        return tensor.narrow(0, self.start * rows, self.count * rows)

    def halves(self) -> list["Part"]:
        """Parts of this part; none where it has too few samples."""
        if self.count < _HALVED:
            return []
        half = self.count // 2
        rest = self.count - half
        return [
            replace(self, batch=self.count, count=half),
            replace(self, batch=self.count, count=rest, start=half),
        ]

    def is_sum(self, output: Tensor) -> bool:
        """Whether it does not get smaller with the batch, such as a loss."""
        if self.axis_of(output) is not None:
            return False
        return not output.dim() or output.shape[0] < self.batch or output.shape[0] % self.batch > 0

    def of_call(self, value: Any, depth: int = _DEPTH) -> Any:
        """The same structure with the part's own copies of tensors, lists and lengths."""
        if isinstance(value, Tensor):
            return self._own(value)
        if isinstance(value, PackedSequence):
            raise Uncuttable
        if depth == 0 or value is None or isinstance(value, str | float | bool | nn.Module):
            return value
        if isinstance(value, int):
            return self.count if self.counts_in_numbers and value == self.batch else value
        if isinstance(value, list | tuple):
            return self._of_sequence(value, depth)
        if isinstance(value, dict):
            found = copy.copy(value)
            found.update({key: self.of_call(each, depth - 1) for key, each in value.items()})
            return found
        if not tensors_in(value, depth):
            return value
        found = copy.copy(value)
        found.__dict__.update(
            {key: self.of_call(each, depth - 1) for key, each in value.__dict__.items()}
        )
        return found

    def _of_sequence(self, value: Any, depth: int) -> Any:
        tensors = [each for each in value if isinstance(each, Tensor)]
        have_own = bool(tensors) and all(self.axis_of(each) is not None for each in tensors)
        if len(value) == self.batch and isinstance(value, list) and not have_own:
            return value[self.start : self.start + self.count]
        parts = [self.of_call(each, depth - 1) for each in value]
        if isinstance(value, list):
            return parts
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)

    def _own(self, tensor: Tensor) -> Tensor:
        if not is_plain(tensor) or tensor.layout != torch.strided:
            raise Uncuttable
        if self.axis_of(tensor) is None:
            if tensor.dim() == 2 and tensor.shape[0] == 2 and not tensor.is_floating_point():
                # The ends of a graph's edges are numbers of its nodes, in all of the batch.
                raise Uncuttable
            return tensor
        # A model may write over what it is given.
        return self.of(tensor).detach().clone().requires_grad_(tensor.requires_grad)


def parts_of(call: Any, outputs: list[Tensor], model: nn.Module, least: int) -> list[Part]:
    """Ways to cut a call, the likeliest first; none where its batch is too small for a part."""
    leading = next((t for t in tensors_in(call) if t.dim()), None)
    shapes = [t.shape[:_AXES] for t in (*tensors_in(call), *outputs)]
    found: list[tuple[int, int]] = []
    if leading is not None:
        axes = range(min(_AXES, leading.dim()))
        if any(getattr(module, "batch_first", True) is False for module in model.modules()):
            axes = reversed(axes)
        found = [(leading.shape[axis], axis) for axis in axes]
        found.sort(key=lambda each: -sum(each[0] in shape for shape in shapes))
    found += [(len(each), 0) for each in _lists_in(call)]
    parts: list[Part] = []
    for batch, axis in found:
        count = part_of(batch, least)
        if count < batch:
            parts += [
                Part(batch, count, axis, counts)
                for counts in (False, True)
                if counts is False or batch in _numbers_in(call)
            ]
    return parts


# Of a batch, at most this share is run again, plainly and encoded.
PART = 12
# Statistics over a batch need two samples.
LEAST = 2


def part_of(batch: int, least: int = LEAST) -> int:
    """How many samples of a batch are run again; all of them where a part would be a large one."""
    count = max(least, batch // PART)
    return count if 2 * count * PART <= 3 * batch else batch


def least_of(model: nn.Module) -> int:
    """Fewest samples that tell something: two where their statistics are taken."""
    is_over_batch = any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
        for module in model.modules()
    )
    return LEAST if is_over_batch else 1


def _lists_in(value: Any) -> list[list[Any]]:
    if isinstance(value, list):
        return [value] if value else []
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple):
        return []
    return [found for each in value for found in _lists_in(each)]


def _numbers_in(value: Any) -> list[int]:
    if isinstance(value, int):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [found for each in value for found in _numbers_in(each)]
