"""Blob to array."""

from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from elbowroom.codec.backends import backend_named
from elbowroom.codec.blob import Blob
from elbowroom.codec.bound import Array
from elbowroom.codec.float_env import default_float_env, is_default
from elbowroom.codec.layout import (
    ITEM_BYTES,
    NUMPY_TYPES,
    PLAIN_TENSORS,
    TORCH,
    TORCH_TYPES,
    check_storage,
    strides_in,
)
from elbowroom.codec.opaque import opaque
from elbowroom.codec.threads import thread_count
from elbowroom.errors import InvalidArgument

_HOST = torch.device("cpu")


@opaque
def decode(
    blob: Any,
    *,
    out: Array | None = None,
    threads: int | None = None,
    backend: Literal["native", "reference"] | None = None,
) -> Any:
    """Decode a blob to an array of the kind, dtype, shape, strides and device that was encoded.

    Args:
        blob: A `Blob`, or the bytes of one.
        out: An array of the same kind, dtype, shape and strides to write into. If the blob turns
            out to be damaged, its content is undefined.
        threads: By default ELBOWROOM_THREADS or torch's number, and one for small arrays.
        backend: "reference" is the slow oracle.

    Returns:
        A torch tensor or a numpy array; `out` if it was given.

    Raises:
        CorruptData: A chunk is damaged; the text says which.
    """
    if not is_default():
        with default_float_env():
            return decode(blob, out=out, threads=threads, backend=backend)
    if type(blob) is not Blob:
        blob = Blob.frombytes(blob)
    count = thread_count(threads, blob.item_count * ITEM_BYTES[blob._recipe[1]])
    program = backend_named(backend)
    if blob.kind == TORCH:
        return _decode_torch(blob, out, program, count)
    return _decode_numpy(blob, out, program, count)


def _decode_torch(blob: Blob, out: Any, program: ModuleType, threads: int) -> torch.Tensor:
    recipe, shape = blob._recipe, blob.shape
    strides = strides_in(shape, blob._order)
    dtype = TORCH_TYPES[recipe[1]]
    if out is not None:
        _check_torch(out, dtype, shape, strides)
    if out is None or not out.is_cpu:
        target = torch.empty_strided(shape, strides, dtype=dtype, device=_HOST)
    else:
        target = out
    pointer = target.data_ptr()
    _check_target(blob, pointer, target is out)
    program.decode(recipe, blob._segments, blob._directory, blob.item_count, pointer, threads)
    if out is None:
        return target if blob.device is None else target.to(blob.device)
    if target is not out:
        return out.copy_(target)
    if not out.is_inference():
        # What autograd has saved of `out` is no longer what it was.
        torch.autograd.graph.increment_version(out)
    return out


def _decode_numpy(blob: Blob, out: Any, program: ModuleType, threads: int) -> NDArray[Any]:
    recipe, shape = blob._recipe, blob.shape
    dtype = NUMPY_TYPES[recipe[1]]
    if out is None:
        out, given = _empty_numpy(shape, blob._order, dtype), False
    else:
        given = True
        _check_numpy(out, dtype, shape, strides_in(shape, blob._order))
    pointer = out.ctypes.data
    _check_target(blob, pointer, given)
    program.decode(recipe, blob._segments, blob._directory, blob.item_count, pointer, threads)
    return out


def _check_target(blob: Blob, pointer: int, given: bool) -> None:
    """Memory must be there, and must not be that of the blob."""
    nbytes = blob.raw_nbytes
    if nbytes and not pointer:
        raise InvalidArgument("there is no memory to decode into: leave fake tensor mode first")
    if not given:
        return
    for segment in blob._segments:
        start = segment.data.ctypes.data
        if start < pointer + nbytes and pointer < start + segment.data.size:
            raise InvalidArgument(
                "out lies in the memory of the blob itself: pass memory of its own, or leave out= "
                "out"
            )


def _empty_numpy(
    shape: tuple[int, ...], order: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    laid_out = np.empty([shape[axis] for axis in order], dtype)
    return laid_out.transpose(np.argsort(order)) if order != tuple(range(len(shape))) else laid_out


def _check_torch(
    out: Any, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    if type(out) not in PLAIN_TENSORS or out.layout is not torch.strided:
        raise InvalidArgument(
            f"out must be a dense torch tensor, got {_kind(out)}: pass one, or leave out= out"
        )
    if out.requires_grad:
        raise InvalidArgument("out must not require a gradient, but it does: pass out.detach()")
    _check_same(out.dtype, dtype, out.shape, shape, out.stride(), strides)
    try:
        pointer = out.data_ptr()
    except RuntimeError:
        pointer = 0
    if out.is_meta or (pointer == 0 and out.numel()):
        raise InvalidArgument(
            "out has no memory to decode into: pass a tensor with a storage, outside of fake "
            "tensor modes, vmap and the like"
        )
    check_storage(out, "out", out.numel())
    if out.is_neg() or pointer % dtype.itemsize:
        raise InvalidArgument(
            "out must be an ordinary tensor, got a negated or unaligned view: pass a tensor of its "
            "own, or leave out= out"
        )


def _kind(out: Any) -> str:
    sparse = isinstance(out, torch.Tensor) and out.layout is not torch.strided
    return f"one of layout {out.layout}" if sparse else type(out).__name__


def _check_numpy(
    out: Any, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise InvalidArgument(
            f"out must be a numpy array, got {type(out).__name__}: pass an array, or leave out= out"
        )
    if not out.flags.writeable:
        raise InvalidArgument("out must be writeable, but is read-only: pass a copy of it")
    if not out.flags.aligned:
        raise InvalidArgument("out must be aligned, but its items are not: pass a copy of it")
    found = tuple(stride // dtype.itemsize for stride in out.strides)
    _check_same(out.dtype, dtype, out.shape, shape, found, strides)


def _check_same(
    dtype: object,
    wanted_dtype: object,
    shape: tuple[int, ...],
    wanted_shape: tuple[int, ...],
    strides: tuple[int, ...],
    wanted_strides: tuple[int, ...],
) -> None:
    if dtype != wanted_dtype or tuple(shape) != tuple(wanted_shape):
        raise InvalidArgument(
            f"out must be of {wanted_dtype} and shape {list(wanted_shape)}, got {dtype} "
            f"and {list(shape)}: make it like the encoded array, or leave out= out"
        )
    # The stride of an axis of length 1 moves nothing, and nothing moves in an empty array.
    if 0 not in shape and any(
        length != 1 and found != wanted
        for length, found, wanted in zip(shape, strides, wanted_strides, strict=True)
    ):
        raise InvalidArgument(
            f"out must have the strides {list(wanted_strides)} (in items), got {list(strides)}: "
            "make it like the encoded array, or leave out= out"
        )
