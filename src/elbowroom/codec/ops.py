"""The codec as torch operators, for torch.compile: `torch.ops.elbowroom.encode` and `decode`.

The buffer has room for the largest blob that an array of this shape can become, so that shapes
do not depend on data; `length` says how much of it is the blob, and the rest is zero.
"""

from collections.abc import Sequence

import numpy as np
import torch

from elbowroom.codec.blob import Blob, largest_nbytes
from elbowroom.codec.bound import Bound, Mode
from elbowroom.codec.decode import decode
from elbowroom.codec.encode import encode
from elbowroom.codec.layout import TORCH
from elbowroom.errors import InvalidArgument

_LIBRARY = torch.library.Library("elbowroom", "FRAGMENT")
_MODES = {mode.name.lower(): mode for mode in Mode}


def _encode(
    x: torch.Tensor, bound: float, mode: str = "absolute", codec: str = "block"
) -> tuple[torch.Tensor, torch.Tensor]:
    if mode not in _MODES:
        raise InvalidArgument(
            f"mode must be one of {', '.join(sorted(_MODES))}, got {mode!r}: "
            "they are named after the constructors of Bound"
        )
    # A name that is none is refused by encode.
    blob = encode(x, Bound(_MODES[mode], bound), codec=codec)  # type: ignore[arg-type]
    capacity = largest_nbytes(x.dim(), x.numel(), x.element_size())
    buffer = torch.empty(capacity, dtype=torch.uint8, device="cpu")
    target = buffer.numpy()
    end = 0
    for piece in blob.pieces():
        target[end : end + len(piece)] = np.frombuffer(piece, np.uint8)
        end += len(piece)
    target[end:] = 0
    length = torch.tensor(end, dtype=torch.int64, device="cpu")
    return buffer.to(x.device), length.to(x.device)


def _encode_fake(
    x: torch.Tensor, bound: float, mode: str = "absolute", codec: str = "block"
) -> tuple[torch.Tensor, torch.Tensor]:
    del bound, mode, codec
    capacity = largest_nbytes(x.dim(), x.numel(), x.element_size())
    return x.new_empty(capacity, dtype=torch.uint8), x.new_empty((), dtype=torch.int64)


def _decode(
    buffer: torch.Tensor, length: torch.Tensor, size: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    end = int(length.item())
    if buffer.dtype != torch.uint8 or buffer.dim() != 1 or not 0 <= end <= buffer.numel():
        raise InvalidArgument(
            f"a buffer of uint8 and a length within it were expected, got {buffer.dtype} "
            f"{list(buffer.shape)} and {end}: pass what elbowroom::encode returned"
        )
    blob = Blob.frombytes(buffer[:end].cpu().contiguous().numpy())
    if blob.kind != TORCH or blob.dtype != dtype or list(blob.shape) != list(size):
        raise InvalidArgument(
            f"a blob of torch {dtype} {list(size)} was expected, found {blob!r}: "
            "pass the shape and dtype of the tensor that was encoded"
        )
    return decode(blob).contiguous().to(buffer.device)


def _decode_fake(
    buffer: torch.Tensor, length: torch.Tensor, size: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    del length
    return buffer.new_empty(size, dtype=dtype)


def _register() -> None:
    tags = (torch.Tag.pt2_compliant_tag,)
    _LIBRARY.define(
        'encode(Tensor x, float bound, str mode="absolute", str codec="block") -> (Tensor, Tensor)',
        tags=tags,
    )
    _LIBRARY.define(
        "decode(Tensor buffer, Tensor length, SymInt[] size, ScalarType dtype) -> Tensor",
        tags=tags,
    )
    for device in ("CPU", "CUDA"):
        _LIBRARY.impl("encode", _encode, device)
        _LIBRARY.impl("decode", _decode, device)
    torch.library.register_fake("elbowroom::encode", _encode_fake, lib=_LIBRARY)
    torch.library.register_fake("elbowroom::decode", _decode_fake, lib=_LIBRARY)


_register()
