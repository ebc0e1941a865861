"""Velocity models: the speed of sound in a vertical section of the earth."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.science.data import locate

MARMOUSI_SPACING_M = 7.5
MARMOUSI_SHAPE = (1601, 401)


@dataclass(frozen=True, kw_only=True)
class Velocity:
    """Metres a second at the points of a grid: depth down the rows, distance along them."""

    m_per_s: Tensor
    spacing_m: float

    def __post_init__(self) -> None:
        values = self.m_per_s
        if not isinstance(values, Tensor):
            raise InvalidArgument(
                f"m_per_s must be a tensor, got {type(values).__name__}: pass "
                "torch.as_tensor(values, dtype=torch.float32)"
            )
        if values.dim() != 2 or min(values.shape) < 5:
            raise InvalidArgument(
                f"a section of at least 5 x 5 points was expected, got {list(values.shape)}"
            )
        if not bool((values > 0).all() & torch.isfinite(values).all()):
            raise InvalidArgument("velocities must be positive and finite")
        if not self.spacing_m > 0:
            raise InvalidArgument(f"spacing_m must be positive, got {self.spacing_m}")

    def every(self, count: int) -> "Velocity":
        """Return the model on every so-manieth point."""
        if count < 1:
            raise InvalidArgument(f"every point, or every second one: from 1 on, got {count}")
        return Velocity(m_per_s=self.m_per_s[::count, ::count], spacing_m=count * self.spacing_m)


def marmousi(folder: Path | None = None) -> Velocity:
    """Return the Marmousi model: faulted layers under water, 12 by 3 km."""
    (path,) = locate("marmousi", folder).values()
    km_per_s = np.load(path, allow_pickle=False)
    if km_per_s.shape != MARMOUSI_SHAPE:
        raise CorruptData(f"{path} has the shape {km_per_s.shape}, expected {MARMOUSI_SHAPE}")
    values = torch.from_numpy(np.ascontiguousarray(km_per_s.T, np.float32))
    return Velocity(m_per_s=1000 * values, spacing_m=MARMOUSI_SPACING_M)


def layered(
    depth_points: int = 100,
    width_points: int = 200,
    *,
    spacing_m: float = 10.0,
    top_m_per_s: float = 1500.0,
    bottom_m_per_s: float = 3500.0,
    layers: int = 6,
) -> Velocity:
    """Return a made-up model that needs no data: tilted layers, each faster than that above."""
    depth = torch.linspace(0, 1, depth_points)[:, None]
    distance = torch.linspace(-1, 1, width_points)[None, :]
    height = depth + 0.05 * torch.sin(3 * distance) + 0.04 * distance
    layer = (height * layers).floor().clamp(0, layers - 1)
    span = bottom_m_per_s - top_m_per_s
    values = top_m_per_s + span * layer / max(1, layers - 1)
    return Velocity(m_per_s=values, spacing_m=spacing_m)


def smooth(velocity: Velocity, *, over_m: float) -> Velocity:
    """Return the model blurred by a Gaussian of that width: where an inversion starts."""
    if not 0 < over_m < float("inf"):
        raise InvalidArgument(f"over_m must be a positive width in metres, got {over_m}")
    reach = max(1, round(3 * over_m / velocity.spacing_m))
    at = torch.arange(-reach, reach + 1, dtype=velocity.m_per_s.dtype) * velocity.spacing_m
    kernel = torch.exp(-0.5 * (at / over_m) ** 2)
    kernel /= kernel.sum()
    field = velocity.m_per_s[None, None]
    down, along = (0, 0, reach, reach), (reach, reach, 0, 0)
    for shape, pad in (((1, 1, -1, 1), down), ((1, 1, 1, -1), along)):
        field = functional.conv2d(functional.pad(field, pad, "replicate"), kernel.view(shape))
    return Velocity(m_per_s=field[0, 0], spacing_m=velocity.spacing_m)
