"""Items to the numbers that the rules calculate with, and back: widening, narrowing, `int`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec.recipe import Dtype

Items = NDArray[Any]

# bf16 has no numpy type: its items are patterns.
NUMPY_TYPES: dict[Dtype, np.dtype[Any]] = {
    Dtype.F16: np.dtype("<f2"),
    Dtype.BF16: np.dtype("<u2"),
    Dtype.F32: np.dtype("<f4"),
    Dtype.F64: np.dtype("<f8"),
    Dtype.I8: np.dtype("i1"),
    Dtype.U8: np.dtype("u1"),
    Dtype.I16: np.dtype("<i2"),
    Dtype.U16: np.dtype("<u2"),
    Dtype.I32: np.dtype("<i4"),
    Dtype.U32: np.dtype("<u4"),
    Dtype.I64: np.dtype("<i8"),
    Dtype.U64: np.dtype("<u8"),
    Dtype.BOOL: np.dtype("?"),
}


def real_type(dtype: Dtype) -> type[np.float32] | type[np.float64]:
    """The arithmetic of the lossy rules."""
    return np.float64 if dtype == Dtype.F64 else np.float32


def widen(dtype: Dtype, items: Items) -> Items:
    """Items as numbers of the rules' arithmetic; always exact."""
    if dtype == Dtype.BF16:
        return (items.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(all="ignore"):
        return items.astype(real_type(dtype))


def narrow(dtype: Dtype, values: Items) -> Items:
    """`round16`: numbers as items, rounded to nearest, ties to even."""
    if dtype == Dtype.BF16:
        bits = values.view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    if dtype != Dtype.F16:
        return values
    with np.errstate(all="ignore"):
        halves = values.astype(np.float16)
    # Only forged codes reconstruct to NaN: quiet, with what fits of the mantissa.
    bits = values.view(np.uint32)
    sign = (bits >> np.uint32(16)) & np.uint32(0x8000)
    quiet = (sign | np.uint32(0x7E00) | ((bits >> np.uint32(13)) & np.uint32(0x3FF))).astype(
        np.uint16
    )
    return np.where(np.isnan(values), quiet.view(np.float16), halves)


def nearest_int(values: Items) -> NDArray[np.int64]:
    """`int(t)`: the nearest integer, ties to even; NaN and what leaves 32 bits become -2^31."""
    fits = (values >= -(2.0**31)) & (values < 2.0**31)
    return np.where(fits, np.rint(np.where(fits, values, 0)), -(2.0**31)).astype(np.int64)


def wrap(values: NDArray[Any]) -> NDArray[np.int32]:
    """Integers modulo 2^32, as signed codes."""
    return values.astype(np.int64).astype(np.uint32).view(np.int32)
