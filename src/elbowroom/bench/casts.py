"""What trainers write by hand to make activations smaller, for scale: plain torch, no bound."""

import torch

GROUP = 256
LEVELS = 15  # four bits


def quantise4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Four bits an item by group of 256, as ActNN and GACT store activations.

    Rounding is to nearest: their stochastic rounding only takes longer. The number of items must
    be a multiple of the group.
    """
    groups = x.reshape(-1, GROUP)
    low, high = torch.aminmax(groups, dim=1, keepdim=True)
    scale = (high - low).clamp_min_(1e-12).div_(LEVELS)
    codes = (groups - low).div_(scale).round_().to(torch.uint8)
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return packed, low.bfloat16(), scale.bfloat16()


def restore4(packed: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the items of quantise4 in one dimension."""
    codes = torch.stack((packed & 15, packed >> 4), dim=2).reshape(-1, GROUP)
    return codes.float().mul_(scale.float()).add_(low.float()).reshape(-1)
