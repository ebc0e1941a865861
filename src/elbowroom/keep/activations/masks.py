"""Tensors of which one bit a value is enough."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elbowroom import _native
from elbowroom.codec.layout import TORCH_TYPES
from elbowroom.codec.threads import thread_count
from elbowroom.keep.activations.payloads import Layout, dense_form, laid_out, take_sample

_PATTERNS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_NUMBERS = {dtype: int(number) for number, dtype in TORCH_TYPES.items()}
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
        out = torch.empty_strided(
            self.shape, self.stride, dtype=self.dtype, device=self.bits.device
        )
        expand(self.bits, self.low, self.high, out)
        return laid_out(out, self.layout)


def pack_sign(tensor: Tensor) -> Bits:
    """Which values are above zero, as ones and zeros."""
    dense, layout = dense_form(tensor)
    if dense.is_cpu:
        bits = _room_for(dense)
        items = dense.numel()
        _native.pack_positive(
            _NUMBERS[dense.dtype],
            dense.data_ptr(),
            items,
            bits.data_ptr(),
            thread_count(None, items * dense.element_size()),
        )
    else:
        bits = fold(_flat(dense) > 0)
    high = pattern_of(_ONE.to(dense.dtype))
    return _bits(bits, dense, layout, 0, high, "sign")


def pack_two_valued(tensor: Tensor) -> Bits | None:
    """Exact, for a tensor with just two different values; else None."""
    dense, layout = dense_form(tensor)
    probe = take_sample(dense)
    extremes = torch.aminmax(probe)
    low, high = extremes.min, extremes.max
    if not bool(low < high) or not bool(((probe == low) | (probe == high)).all()):
        return None
    # As patterns: -0.0 equals 0.0 and is not the same.
    first, second = pattern_of(low), pattern_of(high)
    if dense.is_cpu:
        bits = _room_for(dense)
        items, item = dense.numel(), dense.element_size()
        known = _native.pack_either(
            item,
            dense.data_ptr(),
            items,
            first,
            second,
            bits.data_ptr(),
            thread_count(None, items * item),
        )
    else:
        patterns = _flat(dense).view(_PATTERNS[dense.element_size()])
        above = patterns == high.view(patterns.dtype)
        known = bool((above | (patterns == low.view(patterns.dtype))).all())
        bits = fold(above)
    return _bits(bits, dense, layout, first, second, "bits") if known else None


def pattern_of(value: Tensor) -> int:
    """The bits of a single value."""
    size = value.element_size()
    return int(value.view(_PATTERNS[size])) % (1 << 8 * size)


def expand(bits: Tensor, low: int, high: int, out: Tensor) -> None:
    """Fill a dense tensor with two patterns."""
    if out.is_cpu:
        items, item = out.numel(), out.element_size()
        _native.expand_bits(
            item,
            bits.data_ptr(),
            items,
            low,
            high,
            out.data_ptr(),
            thread_count(None, items * item),
        )
        return
    patterns = _flat(out).view(_PATTERNS[out.element_size()])
    signed = [_signed(pattern, out.element_size()) for pattern in (low, high)]
    patterns.copy_(unfold(bits, out.numel()).to(patterns.dtype) * (signed[1] - signed[0]))
    patterns.add_(signed[0])


def fold(mask: Tensor) -> Tensor:
    """Eight flags a byte, the first in the lowest place: any device's way."""
    count = -(-mask.numel() // 8)
    padded = mask.new_zeros(8 * count, dtype=torch.uint8)
    padded[: mask.numel()] = mask
    places = torch.arange(8, device=mask.device, dtype=torch.uint8)
    return (padded.view(count, 8) << places).sum(1, dtype=torch.uint8)


def unfold(bits: Tensor, count: int) -> Tensor:
    """Undo `fold`."""
    places = torch.arange(8, device=bits.device, dtype=torch.uint8)
    return ((bits.unsqueeze(1) >> places) & 1).view(-1)[:count]


def _signed(pattern: int, size: int) -> int:
    return pattern - (1 << 8 * size) if pattern >> (8 * size - 1) else pattern


def _room_for(dense: Tensor) -> Tensor:
    return torch.empty(-(-dense.numel() // 8), dtype=torch.uint8)


def _flat(dense: Tensor) -> Tensor:
    return dense.as_strided((dense.numel(),), (1,))


def _bits(
    bits: Tensor, dense: Tensor, layout: Layout | None, low: int, high: int, method: str
) -> Bits:
    shape: Any = tuple(dense.shape)
    return Bits(bits, shape, dense.stride(), layout, dense.dtype, low, high, method)
