"""Tensors of which backward asks only on which side of one or two limits each value lies.

Clamp, hardtanh, relu6, threshold, abs and the like have slopes that are constant between their
limits. A band number a value, entropy-coded, is enough for the exact gradient. Values that are
equal to a limit have a band of their own, and so has NaN: whatever the kernel compares with, it
finds what it would have found.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from elbowroom.codec import Blob, Bound, decode, encode
from elbowroom.keep.activations.needs import kind_of
from elbowroom.keep.activations.payloads import Layout, dense_form, laid_out

Limits = tuple[float, ...]

_ONE = {"Threshold": "threshold", "ClampMin": "min", "ClampMax": "max"}
_TWO = {"Hardtanh": ("min_val", "max_val"), "Clamp": ("min", "max")}
_FIXED: dict[str, Limits] = {"Abs": (0.0,), "Hardsigmoid": (-3.0, 3.0)}


def limits_of(node: Any) -> Limits | None:
    """Read from the autograd node; None where they are tensors, or out of order."""
    kind = kind_of(node)
    if kind in _FIXED:
        return _FIXED[kind]
    if kind in ("Hardshrink", "Softshrink"):
        values = [-node._saved_lambd, node._saved_lambd]
    elif kind in _ONE:
        values = [getattr(node, "_saved_" + _ONE[kind])]
    elif kind in _TWO:
        values = [getattr(node, "_saved_" + name) for name in _TWO[kind]]
    else:
        return None
    values = [value for value in values if value is not None]
    if not values or any(isinstance(v, Tensor) or not math.isfinite(v) for v in values):
        return None
    limits = tuple(float(v) for v in values)
    return limits if all(a < b for a, b in pairwise(limits)) else None


@dataclass(frozen=True, slots=True)
class Banded:
    """Band numbers, and a value that stands for each band."""

    blob: Blob
    layout: Layout | None
    stands: Tensor
    method: str = "bands"

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.blob.nbytes

    def restore(self) -> Tensor:
        """Make it again."""
        bands = decode(self.blob)
        out = torch.full_like(bands, float("nan"), dtype=self.stands.dtype)
        for number, stand in enumerate(self.stands):
            out.masked_fill_(bands == number, stand)
        return laid_out(out, self.layout)


def pack_bands(tensor: Tensor, limits: Limits, like: Blob | None) -> Banded | None:
    """None for limits that the type cannot tell apart, and for complex numbers."""
    if not tensor.is_floating_point():
        return None
    dense, layout = dense_form(tensor)
    edges = torch.tensor(limits, dtype=tensor.dtype, device=tensor.device)
    middles = (edges[1:] + edges[:-1]) / 2
    stands = edges.new_full((2 * len(limits) + 1,), math.inf)
    stands[0], stands[1::2] = -math.inf, edges
    stands[2:-1:2] = middles
    if not bool((stands[1:] > stands[:-1]).all()):
        return None
    # Above the first edge: two bands further; equal to it: one.
    bands = torch.zeros_like(dense, dtype=torch.uint8)
    for edge in edges:
        bands += (dense >= edge).to(torch.uint8)
        bands += (dense > edge).to(torch.uint8)
    bands.masked_fill_(dense.isnan(), 255)
    return Banded(encode(bands, Bound.lossless(), like=like), layout, stands)
