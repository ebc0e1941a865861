"""Draws jets as images: centred, turned, mirrored and put on a grid of transverse momenta."""

import math

import torch
from torch import Tensor


def draw_images(momenta: Tensor, *, pixels: int = 40, reach: float = 1.0) -> Tensor:
    """Return jets x 1 x pixels x pixels from jets x constituents x (E, px, py, pz).

    The middle is the jet's axis; the second principal axis of momentum lies across, and the half
    with more momentum is on the right and above. A pixel has its share of the jet's momentum.
    `reach` is how far the image goes from the middle, in rapidity and azimuth.
    """
    px, py, pz = momenta[..., 1], momenta[..., 2], momenta[..., 3]
    transverse = torch.hypot(px, py)
    weight = transverse / transverse.sum(dim=1, keepdim=True).clamp(min=1e-12)
    eta = torch.asinh(pz / transverse.clamp(min=1e-12))
    azimuth = torch.atan2(py, px)
    # Azimuth is periodic: measured from the hardest constituent it does not jump within a jet.
    hardest = weight.argmax(dim=1, keepdim=True)
    azimuth = (azimuth - azimuth.gather(1, hardest) + math.pi) % (2 * math.pi) - math.pi
    x = eta - (weight * eta).sum(dim=1, keepdim=True)
    y = azimuth - (weight * azimuth).sum(dim=1, keepdim=True)
    turn = 0.5 * torch.atan2(
        2 * (weight * x * y).sum(dim=1, keepdim=True),
        (weight * (x * x - y * y)).sum(dim=1, keepdim=True),
    )
    x, y = x * turn.cos() + y * turn.sin(), y * turn.cos() - x * turn.sin()
    x = x * _heavier_side(x, weight)
    y = y * _heavier_side(y, weight)
    column = ((x / reach + 1) / 2 * pixels).floor().long()
    row = ((y / reach + 1) / 2 * pixels).floor().long()
    inside = (row >= 0) & (row < pixels) & (column >= 0) & (column < pixels) & (weight > 0)
    place = torch.where(inside, row * pixels + column, 0)
    flat = torch.zeros(len(momenta), pixels * pixels)
    flat.scatter_add_(1, place, torch.where(inside, weight, 0))
    return flat.view(-1, 1, pixels, pixels)


def _heavier_side(x: Tensor, weight: Tensor) -> Tensor:
    balance = (weight * x.sign() * x.square()).sum(dim=1, keepdim=True)
    return torch.where(balance < 0, -1.0, 1.0)
