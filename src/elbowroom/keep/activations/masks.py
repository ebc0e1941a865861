"""Tensors of which one bit a value is enough."""

from dataclasses import dataclass

import torch
from torch import Tensor

from elbowroom.codec.bits import expand, pack_either, pack_nonzero, pack_positive, pattern_of
from elbowroom.keep.activations.payloads import Layout, dense_form, laid_out, take_sample

_ONE = torch.ones(())


@dataclass(frozen=True, slots=True)
class Bits:
    """One bit a value: the pattern high where it is set, low elsewhere."""

    bits: Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    layout: Layout | None
    dtype: torch.dtype
    low: int
    high: int
    method: str = "bits"

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.bits.numel()

    def restore(self) -> Tensor:
        """Make it again."""
        device = self.bits.device
        out = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)
        expand(self.bits, self.low, self.high, out)
        return laid_out(out, self.layout)


def pack_sign(tensor: Tensor, *, of_size: bool = False) -> Bits:
    """Which values, or which sizes of values, are above zero, as ones and zeros."""
    dense, layout = dense_form(tensor)
    high = pattern_of(_ONE.to(dense.dtype))
    bits = pack_nonzero(dense) if of_size else pack_positive(dense)
    return _bits(bits, dense, layout, 0, high, "sign")


def pack_two_valued(tensor: Tensor) -> Bits | None:
    """Exact, for a tensor with just two different values; else None."""
    dense, layout = dense_form(tensor)
    probe = take_sample(dense)
    low, high = torch.aminmax(probe)
    if not bool(low < high) or not bool(((probe == low) | (probe == high)).all()):
        return None
    # As patterns: -0.0 equals 0.0 and is not the same.
    first, second = pattern_of(low), pattern_of(high)
    bits = pack_either(dense, first, second)
    return None if bits is None else _bits(bits, dense, layout, first, second, "bits")


def _bits(
    bits: Tensor, dense: Tensor, layout: Layout | None, low: int, high: int, method: str
) -> Bits:
    return Bits(bits, tuple(dense.shape), dense.stride(), layout, dense.dtype, low, high, method)
