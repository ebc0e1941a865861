"""How an array lies in memory: element type, axis order, rows, and where it starts."""

import math
import struct
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from elbowroom.codec.bound import Array
from elbowroom.codec.recipe import Dtype
from elbowroom.errors import InvalidArgument

MAX_NDIM = 32
TORCH = "torch"
NUMPY = "numpy"

TORCH_TYPES: dict[int, torch.dtype] = {
    Dtype.F16: torch.float16,
    Dtype.BF16: torch.bfloat16,
    Dtype.F32: torch.float32,
    Dtype.F64: torch.float64,
    Dtype.I8: torch.int8,
    Dtype.U8: torch.uint8,
    Dtype.I16: torch.int16,
    Dtype.U16: torch.uint16,
    Dtype.I32: torch.int32,
    Dtype.U32: torch.uint32,
    Dtype.I64: torch.int64,
    Dtype.U64: torch.uint64,
    Dtype.BOOL: torch.bool,
}
NUMPY_TYPES: dict[int, np.dtype[Any]] = {
    Dtype.F16: np.dtype(np.float16),
    Dtype.F32: np.dtype(np.float32),
    Dtype.F64: np.dtype(np.float64),
    Dtype.I8: np.dtype(np.int8),
    Dtype.U8: np.dtype(np.uint8),
    Dtype.I16: np.dtype(np.int16),
    Dtype.U16: np.dtype(np.uint16),
    Dtype.I32: np.dtype(np.int32),
    Dtype.U32: np.dtype(np.uint32),
    Dtype.I64: np.dtype(np.int64),
    Dtype.U64: np.dtype(np.uint64),
    Dtype.BOOL: np.dtype(np.bool_),
}
ITEM_BYTES: dict[int, int] = {int(dtype): dtype.item_bytes for dtype in Dtype}

_OF_TORCH = {value: (int(key), ITEM_BYTES[key]) for key, value in TORCH_TYPES.items()}
_OF_NUMPY = {value: (int(key), ITEM_BYTES[key]) for key, value in NUMPY_TYPES.items()}
PLAIN_TENSORS = {torch.Tensor, torch.nn.Parameter}
_GEOMETRY = struct.Struct("<II")
_ACCEPTED = "float16, bfloat16, float32, float64, an integer type or bool"


class Layout(NamedTuple):
    """A dense arrangement of items."""

    order: tuple[int, ...]  # axes from outermost to innermost in memory
    items: int
    geometry: bytes  # columns and rows, as the recipe holds them


class Source(NamedTuple):
    """An array whose items lie one after another from `pointer` on."""

    kind: str
    dtype: int
    item_bytes: int
    shape: tuple[int, ...]
    layout: Layout
    pointer: int
    device: torch.device | None  # where it was, if not in the memory of the host
    owner: Array  # keeps the memory alive


@lru_cache(maxsize=4096)
def strides_in(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in items, of a dense array whose axes lie in this order."""
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


@lru_cache(maxsize=4096)
def dense_layout(shape: tuple[int, ...], strides: tuple[int, ...], unit: int) -> Layout | None:
    """The layout of an array whose strides count units of an item; None if it is not dense.

    Axes of length 1 take any stride that a dense array may have; one that no axis order explains
    is ignored, since it moves nothing.
    """
    if any(stride % unit for stride in strides):
        return None
    wanted = tuple(stride // unit for stride in strides)
    axes = range(len(shape))
    row_major = tuple(axes)
    if wanted == strides_in(shape, row_major):
        return _layout(shape, row_major)
    # Among equal strides an axis of length 1 lies inside: it does not stretch those around it.
    order = tuple(sorted(axes, key=lambda axis: (-wanted[axis], shape[axis] == 1)))
    if wanted == strides_in(shape, order):
        return _layout(shape, order)
    if 0 in shape:
        return _layout(shape, row_major)
    long = [axis for axis in axes if shape[axis] != 1]
    long.sort(key=lambda axis: -wanted[axis])
    order = (*(axis for axis in axes if shape[axis] == 1), *long)
    dense = strides_in(shape, order)
    if any(wanted[axis] != dense[axis] for axis in long):
        return None
    return _layout(shape, row_major if long == sorted(long) else order)


def _layout(shape: tuple[int, ...], order: tuple[int, ...]) -> Layout:
    sizes = [shape[axis] for axis in order if shape[axis] != 1] or [1] * bool(shape)
    columns = sizes[-1] if sizes else 0
    rows = sizes[-2] if len(sizes) > 1 else 1
    if not 0 < columns < 2**32 or rows >= 2**32:
        columns = rows = 0
    return Layout(order, math.prod(shape), _GEOMETRY.pack(columns, rows))


def source_of(x: object) -> Source:
    """Look at an array; what cannot be read where it lies is copied first."""
    if isinstance(x, torch.Tensor):
        return _torch_source(x)
    if isinstance(x, np.ndarray):
        return _numpy_source(x)
    hint = "torch.as_tensor(x) or numpy.asarray(x)"
    if type(x).__module__.split(".")[0] == "jax":
        hint = "numpy.asarray(x)"
    raise InvalidArgument(
        f"a torch tensor or a numpy array was expected, got {type(x).__name__}: pass {hint}"
    )


def _torch_source(x: torch.Tensor) -> Source:
    found = _OF_TORCH.get(x.dtype)
    if (
        found is None
        or not x.is_cpu
        or x.layout is not torch.strided
        or type(x) not in PLAIN_TENSORS
        or x.is_nested
        or x.is_neg()
    ):
        return _unusual_torch_source(x)
    dtype, item_bytes = found
    shape = x.shape
    layout = dense_layout(shape, x.stride(), 1)
    try:
        pointer = x.data_ptr()
    except RuntimeError:
        pointer = 0
    if pointer:
        check_storage(x, "a tensor to encode", layout.items if layout else None)
    if layout is None or len(shape) > MAX_NDIM:
        check_ndim(len(shape))
        return _torch_source(x.detach().contiguous())
    if pointer % item_bytes:
        return _torch_source(x.detach().clone())
    if pointer == 0 and layout.items:
        raise InvalidArgument(
            f"a tensor with memory of its own was expected, got one of shape {tuple(shape)} "
            "without: it was freed, or a transform is tracing (there, use torch.ops.elbowroom)"
        )
    return Source(TORCH, dtype, item_bytes, shape, layout, pointer, None, x)


def check_storage(x: torch.Tensor, what: str, items: int | None = None) -> None:
    """Refuse a tensor that reaches beyond its storage, which anyone may have made smaller.

    `items` is how far it reaches if it is dense; None lets its strides say that.
    """
    if items is None:
        last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
        items = last + 1 if x.numel() else 0
    needed = (x.storage_offset() + items) * x.itemsize
    found = x.untyped_storage().nbytes()
    if items and found < needed:
        raise InvalidArgument(
            f"{what} must lie within its storage, got shape {tuple(x.shape)}, which takes {needed} "
            f"bytes, in a storage of {found}: it was made smaller, so resize it back"
        )


def _unusual_torch_source(x: torch.Tensor) -> Source:
    """Tensors that have to be changed before they can be read, and those that cannot be."""
    if x.is_nested:
        _refuse("a nested tensor", "encode the parts that x.unbind() returns")
    if x.is_quantized:
        _refuse("a quantised tensor", "encode x.int_repr() or x.dequantize()")
    if x.layout is not torch.strided:
        _refuse(f"a tensor of layout {x.layout}", "encode its values and indices one by one")
    if x.is_complex():
        _refuse(f"a tensor of {x.dtype}", "encode torch.view_as_real(x)")
    if x.dtype not in _OF_TORCH:
        if x.dtype.itemsize == 1:
            _refuse(f"a tensor of {x.dtype}", "encode x.view(torch.uint8)")
        _refuse(f"a tensor of {x.dtype}", f"convert it to {_ACCEPTED}")
    if x.is_meta:
        _refuse("a tensor on the device meta", "materialise it first")
    if x.is_neg():
        return _torch_source(x.detach().resolve_neg())
    if not x.is_cpu:
        source = _torch_source(x.detach().cpu())
        return source._replace(device=x.device)
    if _is_wrapper(x):
        _refuse(f"a {type(x).__name__}, which wraps other tensors", "encode those inside")
    return _torch_source(x.detach().as_subclass(torch.Tensor))


def _is_wrapper(x: torch.Tensor) -> bool:
    """Whether a subclass holds no memory of its own, as DTensor and FakeTensor do."""
    try:
        storage = x.untyped_storage()
        return storage.device.type != "cpu" or (x.numel() > 0 and storage.data_ptr() == 0)
    except (RuntimeError, NotImplementedError):
        return True


def _numpy_source(x: NDArray[Any]) -> Source:
    if type(x) is not np.ndarray:
        if isinstance(x, np.ma.MaskedArray):
            _refuse("a masked array", "encode x.filled(...) and the mask, each by itself")
        x = x.view(np.ndarray)
    found = _OF_NUMPY.get(x.dtype)
    if found is None:
        return _numpy_source(_ordinary_numpy(x))
    layout = dense_layout(x.shape, x.strides, found[1])
    if layout is None or x.ndim > MAX_NDIM or not x.flags.aligned:
        return _numpy_source(_ordinary_numpy(x))
    return Source(NUMPY, *found, x.shape, layout, x.ctypes.data, None, x)


def _ordinary_numpy(x: NDArray[Any]) -> NDArray[Any]:
    """A row-major copy in the byte order of this machine."""
    check_ndim(x.ndim)
    dtype = x.dtype.newbyteorder("=")
    if x.dtype.kind == "c":
        _refuse(f"an array of {x.dtype}", "encode x.real and x.imag, or its view as floats")
    if dtype not in _OF_NUMPY:
        _refuse(f"an array of {x.dtype}", f"convert it to {_ACCEPTED} (bfloat16: as a tensor)")
    return np.array(x, dtype=dtype, order="C", copy=True)


def check_ndim(ndim: int) -> None:
    """Refuse more axes than the format can hold."""
    if ndim > MAX_NDIM:
        raise InvalidArgument(
            f"at most {MAX_NDIM} dimensions were expected, got {ndim}: reshape before encoding"
        )


def _refuse(found: str, remedy: str) -> NoReturn:
    raise InvalidArgument(f"a dense array of {_ACCEPTED} was expected, got {found}: {remedy}")
