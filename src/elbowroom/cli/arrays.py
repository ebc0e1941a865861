"""Arrays on the command line: the names of their element types, their shape and their bytes."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from elbowroom.codec.recipe import Dtype
from elbowroom.errors import InvalidArgument

Array = np.ndarray | torch.Tensor

# A type's name in numpy and torch, which agree, and in safetensors.
NAMES: dict[Dtype, tuple[str, str]] = {
    Dtype.F16: ("float16", "F16"),
    Dtype.BF16: ("bfloat16", "BF16"),
    Dtype.F32: ("float32", "F32"),
    Dtype.F64: ("float64", "F64"),
    Dtype.I8: ("int8", "I8"),
    Dtype.U8: ("uint8", "U8"),
    Dtype.I16: ("int16", "I16"),
    Dtype.U16: ("uint16", "U16"),
    Dtype.I32: ("int32", "I32"),
    Dtype.U32: ("uint32", "U32"),
    Dtype.I64: ("int64", "I64"),
    Dtype.U64: ("uint64", "U64"),
    Dtype.BOOL: ("bool", "BOOL"),
}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a file has to know about an array before its values come."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return math.prod(self.shape) * self.dtype.item_bytes


def parse_dtype(word: str) -> Dtype:
    """Turn float32, f32 or F32 into the element type."""
    for dtype, names in NAMES.items():
        if word.lower() in {name.lower() for name in names}:
            return dtype
    known = ", ".join(names[0] for names in NAMES.values())
    raise InvalidArgument(f"--dtype must be one of {known}, got {word!r}")


def parse_shape(word: str) -> tuple[int, ...]:
    """Turn 64,3,32,32 or 64x3x32x32 into a shape."""
    try:
        shape = tuple(int(number) for number in word.replace("x", ",").split(","))
    except ValueError:
        shape = (-1,)
    if min(shape) < 0:
        raise InvalidArgument(f"--shape must be whole numbers such as 64,3,32,32, got {word!r}")
    return shape


def to_numpy(array: Array) -> np.ndarray:
    """Return a view as a numpy array; bfloat16 has none."""
    return array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array


def bytes_of(array: Array) -> memoryview:
    """Return the values' bytes in row-major order."""
    if isinstance(array, torch.Tensor):
        flat = array.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data
