"""Tensors as runs of bytes: how each lies in memory, and how it comes back."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from elbowroom.errors import CorruptData, InvalidArgument

DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).startswith("torch.q")
}
_PLAIN = (Tensor, torch.nn.Parameter)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What there is to know of a tensor besides its bytes."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Of all its items."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def layout_of(tensor: Tensor, where: str) -> Layout:
    """Its own strides where they leave no gaps, else those of rows."""
    if type(tensor) not in _PLAIN and is_traceable_wrapper_subclass(tensor):
        raise InvalidArgument(
            f"{where} is a {type(tensor).__name__}, which a Checkpointer cannot hold: save sharded "
            "models with elbowroom.store.checkpoint.dcp"
        )
    if is_lazy(tensor):
        raise InvalidArgument(
            f"{where} has no shape yet: run the model once before the first checkpoint"
        )
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_nested or dtype not in DTYPES:
        kind = "quantised" if dtype not in DTYPES else "nested" if tensor.is_nested else None
        raise InvalidArgument(
            f"{where} is a {kind or tensor.layout} tensor, which a checkpoint cannot hold: return "
            "its dense parts from state_dict"
        )
    if tensor.is_meta:
        raise InvalidArgument(f"{where} is a meta tensor: it has no values to save")
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    if not is_dense(shape, stride):
        stride = rows(shape)
    return Layout(dtype=dtype, shape=shape, stride=stride)


def rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of rows one after another."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether items fill a run of memory without gaps or overlaps."""
    step = 1
    for size, by in sorted(zip(shape, stride, strict=True), key=lambda pair: (pair[1], pair[0])):
        if size == 0:
            return stride == rows(shape)
        if size > 1:
            if by != step:
                return False
            step *= size
    return True


def check_layout(layout: Layout, nbytes: int, where: str) -> None:
    """Refuse what no tensor can be."""
    if layout.dtype not in DTYPES:
        raise CorruptData(f"{where} is of the type {layout.dtype[:40]!r}, which there is not")
    # Strides of what is empty lead nowhere, and are not looked at.
    if layout.nbytes != nbytes or (nbytes and not is_dense(layout.shape, layout.stride)):
        raise CorruptData(
            f"{where} is described as {layout.shape} of {layout.dtype} with strides "
            f"{layout.stride}, which are not the {nbytes} bytes that it has"
        )


def place_over(raw: Tensor, layout: Layout) -> Tensor:
    """The tensor of that layout over the memory of bytes."""
    stride = layout.stride if layout.nbytes else rows(layout.shape)
    return raw.view(DTYPES[layout.dtype]).as_strided(layout.shape, stride)
