"""The peers' quantiser: groups of 256 values, each with a minimum, a scale and a few bits a value.

So do ActNN and GACT, at 2 and 4 bits. Rounding is stochastic: up or down by chance, so that the
mean is right.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

GROUP = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """A tensor in groups; a group's values are whole numbers from 0 to 2^bits - 1."""

    codes: Tensor  # packed, uint8
    lowest: Tensor  # one a group, bfloat16 as the peers have it
    scale: Tensor
    bits: int
    shape: torch.Size
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor, *, bits: int, seed: int | None) -> "Groups":
        """Quantise; without a seed to the nearest."""
        values = tensor.float().flatten()
        values = functional.pad(values, (0, -len(values) % GROUP)).view(-1, GROUP)
        lowest = _floor(values.amin(dim=1, keepdim=True))
        most = 2**bits - 1
        scale = _ceiling((values.amax(dim=1, keepdim=True) - lowest.float()) / most)
        steps = (values - lowest.float()) / scale.float().clamp(min=torch.finfo(torch.float32).tiny)
        if seed is None:
            steps = steps.round()
        else:
            generator = torch.Generator().manual_seed(seed)
            steps = (steps + torch.rand(steps.shape, generator=generator)).floor()
        codes = _pack(steps.clamp(0, most).to(torch.uint8), bits)
        return cls(
            codes=codes,
            lowest=lowest,
            scale=scale,
            bits=bits,
            shape=tensor.shape,
            dtype=tensor.dtype,
        )

    @property
    def nbytes(self) -> int:
        """Of codes, minima and scales."""
        return sum(
            part.numel() * part.element_size() for part in (self.codes, self.lowest, self.scale)
        )

    def restore(self) -> Tensor:
        """Return the tensor, near to what it was."""
        steps = _unpack(self.codes, self.bits).view(-1, GROUP).float()
        values = steps * self.scale.float() + self.lowest.float()
        return values.flatten()[: self.shape.numel()].view(self.shape).to(self.dtype)


def _floor(values: Tensor) -> Tensor:
    """In bfloat16, never above."""
    short = values.to(torch.bfloat16)
    low = torch.nextafter(short, torch.full_like(short, -torch.inf))
    return torch.where(short.float() > values, low, short)


def _ceiling(values: Tensor) -> Tensor:
    """In bfloat16, never below."""
    short = values.to(torch.bfloat16)
    high = torch.nextafter(short, torch.full_like(short, torch.inf))
    return torch.where(short.float() < values, high, short)


def _pack(codes: Tensor, bits: int) -> Tensor:
    """Eight codes of so many bits into as many bytes: one byte for each plane of bits."""
    flat = codes.flatten().view(-1, 8)
    places = torch.arange(8, dtype=torch.uint8)
    planes = [(((flat >> bit) & 1) << places).sum(dim=1, dtype=torch.uint8) for bit in range(bits)]
    return torch.stack(planes)


def _unpack(planes: Tensor, bits: int) -> Tensor:
    places = torch.arange(8, dtype=torch.uint8)
    codes = torch.zeros(planes.shape[1], 8, dtype=torch.uint8)
    for bit in range(bits):
        codes |= ((planes[bit][:, None] >> places) & 1) << bit
    return codes.flatten()
