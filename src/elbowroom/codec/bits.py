"""One bit an item, for what stays in the process: no header, no checksum, no format."""

import torch
from torch import Tensor

from elbowroom import _native
from elbowroom.codec.buffers import Reserve
from elbowroom.codec.layout import TORCH_TYPES
from elbowroom.codec.threads import thread_count

_NUMBERS = {dtype: int(number) for number, dtype in TORCH_TYPES.items()}


# Whole bytes of bits.
_PART = 1 << 18


def pack_positive(dense: Tensor) -> Tensor:
    """Which items of a dense tensor of floats are above zero, in order of memory."""
    if not dense.is_cpu:
        return fold(_flat(dense) > 0)
    bits, items = _room_for(dense), dense.numel()
    threads = thread_count(None, items * dense.element_size())
    _native.pack_positive(_NUMBERS[dense.dtype], dense.data_ptr(), items, bits.data_ptr(), threads)
    return bits


def pack_nonzero(dense: Tensor) -> Tensor:
    """Which items of a dense tensor of floats are not zero, in order of memory."""
    flat = _flat(dense)
    if not dense.is_cpu:
        return fold(flat.abs() > 0)
    bits = _room_for(dense)
    # Sizes without signs take memory: of a part, that is little and stays in the cache.
    for start in range(0, len(flat), _PART):
        part = pack_positive(flat[start : start + _PART].abs())
        bits[start // 8 : start // 8 + len(part)] = part
    return bits


def pack_either(dense: Tensor, low: int, high: int) -> Tensor | None:
    """Which items have the pattern high; None if one has neither that nor low."""
    items, item = dense.numel(), dense.element_size()
    if not dense.is_cpu:
        patterns = _flat(dense).view(_SIGNED[item])
        above = patterns == _signed(high, item)
        known = bool((above | (patterns == _signed(low, item))).all())
        return fold(above) if known else None
    bits = _room_for(dense)
    threads = thread_count(None, items * item)
    address = bits.data_ptr()
    known = _native.pack_either(item, dense.data_ptr(), items, low, high, address, threads)
    return bits if known else None


def expand(bits: Tensor, low: int, high: int, out: Tensor) -> None:
    """Fill a dense tensor with two patterns."""
    items, item = out.numel(), out.element_size()
    if out.is_cpu:
        threads = thread_count(None, items * item)
        _native.expand_bits(item, bits.data_ptr(), items, low, high, out.data_ptr(), threads)
        return
    patterns = _flat(out).view(_SIGNED[item])
    patterns.fill_(_signed(low, item)).masked_fill_(unfold(bits, items) != 0, _signed(high, item))


def lasting(nbytes: int) -> Tensor:
    """Bytes that are likely to outlive what is around them."""
    return torch.from_numpy(Reserve(nbytes).keep(nbytes))


def pattern_of(value: Tensor) -> int:
    """The bits of a single item."""
    size = value.element_size()
    return int(value.view(_SIGNED[size])) % (1 << 8 * size)


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


_SIGNED = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _signed(pattern: int, size: int) -> int:
    return pattern - (1 << 8 * size) if pattern >> (8 * size - 1) else pattern


def _room_for(dense: Tensor) -> Tensor:
    return lasting(-(-dense.numel() // 8))


def _flat(dense: Tensor) -> Tensor:
    return dense.as_strided((dense.numel(),), (1,))
