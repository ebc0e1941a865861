"""What is believed of a model before anything was heard: Tikhonov's priors, and DIAS.

Every prior here is (a / 2n) d^T R d, with a weight a, n points, d = m - m0 in km/s, and a matrix R
that is symmetric and never negative. Tikhonov's R draws on all of the model. DIAS (data-informed
active subspace: Wittmer, Badger, Sundar and Bui-Thanh 2023, arXiv 2304.04781) leaves alone what the
data tell. With C = E[grad f grad f^T] = W L W^T for the data misfit f, W = [W1 W2] and W1 the
directions that hold most of the energy L, its penalty is

    a/2 ||W2^T d||^2 = a/2 (||d||^2 - ||W1^T d||^2),   that is R = W2 W2^T = I - W1 W1^T,

for which the few columns of W1 suffice.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from elbowroom.errors import InvalidArgument
from elbowroom.science.seismic.velocity import Velocity, smooth

KM = 1000.0


@dataclass(frozen=True, kw_only=True)
class Prior(ABC):
    """A quadratic penalty around a reference model."""

    weight: float
    reference: Tensor
    """In metres a second."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float("inf"):
            raise InvalidArgument(f"weight must be a number from 0 on, got {self.weight}")

    @abstractmethod
    def apply(self, d: Tensor) -> Tensor:
        """R d."""

    def value(self, m_per_s: Tensor) -> float:
        """The penalty."""
        d = self._difference(m_per_s)
        return float(0.5 * self.weight * (d * self.apply(d)).mean(dtype=torch.float64))

    def gradient(self, m_per_s: Tensor) -> Tensor:
        """Of the penalty, by velocities in km/s."""
        return self.product(self._difference(m_per_s))

    def product(self, direction: Tensor) -> Tensor:
        """The second derivative times a direction, in km/s."""
        return (self.weight / direction.numel()) * self.apply(direction)

    def _difference(self, m_per_s: Tensor) -> Tensor:
        return (m_per_s - self.reference.to(m_per_s)) / KM


@dataclass(frozen=True, kw_only=True)
class Tikhonov(Prior):
    """Small differences from the reference (order 0), or smooth ones (orders 1 and 2)."""

    order: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in (0, 1, 2):
            raise InvalidArgument(f"order must be 0, 1 or 2, got {self.order}")

    def apply(self, d: Tensor) -> Tensor:
        """D^T D d once for every order, where D takes first differences along both sides."""
        for _ in range(self.order):
            d = _squared_differences(d)
        return d


@dataclass(frozen=True, kw_only=True)
class Subspace:
    """Directions in which the data tell most of the model."""

    basis: Tensor
    """W1: points x rank, orthonormal."""

    energies: Tensor
    """Of all directions that were found, the largest first."""

    @property
    def rank(self) -> int:
        """How many directions are active."""
        return self.basis.shape[1]

    def project(self, d: Tensor) -> Tensor:
        """W1 W1^T d."""
        flat = d.flatten().to(self.basis)
        return (self.basis @ (self.basis.T @ flat)).view_as(d).to(d)


@dataclass(frozen=True, kw_only=True)
class Dias(Prior):
    """Draws only on what lies outside of the active subspace."""

    subspace: Subspace

    def apply(self, d: Tensor) -> Tensor:
        """W2 W2^T d."""
        return d - self.subspace.project(d)


def find_by_gradients(
    gradient: Callable[[Tensor], Tensor],
    center: Velocity,
    *,
    samples: int = 12,
    spread_m_per_s: float = 50.0,
    over_m: float | None = None,
    share: float = 0.95,
    water_rows: int = 0,
    seed: int = 0,
) -> Subspace:
    """The active subspace of a function by its gradients at models drawn around one.

    The mean of grad f grad f^T over the samples is C. Models differ from the center by noise that
    is smooth over `over_m`, four points by default, and not at all in the rows that are water. The
    rank is the least whose eigenvalues hold that share of all.
    """
    if samples < 2 or not 0 < share <= 1:
        raise InvalidArgument(
            f"samples must be at least 2 and share above 0 and at most 1, got {samples}, {share}"
        )
    drawn = torch.Generator().manual_seed(seed)
    over_m = 4 * center.spacing_m if over_m is None else over_m
    columns: list[Tensor] = []
    for _ in range(samples):
        noise = _draw(center, over_m, drawn)
        noise[:water_rows] = 0
        found = gradient(center.m_per_s + spread_m_per_s * noise).clone()
        found[:water_rows] = 0
        columns.append(found.flatten())
    # With G the gradients as columns, G G^T / k = C: left singular vectors and squared values.
    matrix = torch.stack(columns, 1).double()
    _refuse_nothing(matrix, "gradients")
    left, sizes, _ = torch.linalg.svd(matrix / matrix.abs().max(), full_matrices=False)
    return _cut(left, sizes**2 / samples, share)


def find_by_curvature(
    product: Callable[[Tensor], Tensor],
    like: Tensor,
    *,
    directions: int = 12,
    share: float = 0.95,
    seed: int = 0,
) -> Subspace:
    """The active subspace of the Gauss-Newton Hessian by a few random products.

    A randomised eigendecomposition (Halko, Martinsson and Tropp 2011, section 5.3): an orthonormal
    basis Q of H times random directions, then the eigenvectors of Q^T H Q. It needs twice as many
    products as directions.
    """
    if not 2 <= directions <= like.numel() or not 0 < share <= 1:
        raise InvalidArgument(
            f"directions must be from 2 to the number of points and share above 0 and at most 1, "
            f"got {directions}, {share}"
        )
    drawn = torch.Generator().manual_seed(seed)
    noise = torch.randn(like.numel(), directions, generator=drawn, dtype=torch.float64)

    def image(columns: Tensor) -> Tensor:
        made = [product(column.view_as(like).to(like)).flatten() for column in columns.T]
        return torch.stack(made, 1).double()

    first = image(noise)
    _refuse_nothing(first, "products")
    basis, _ = torch.linalg.qr(first)
    small = basis.T @ image(basis)
    energies, vectors = torch.linalg.eigh((small + small.T) / 2)
    return _cut(basis @ vectors.flip(1), energies.flip(0).clamp_min(0), share)


def _refuse_nothing(columns: Tensor, what: str) -> None:
    if not bool(columns.isfinite().all()) or not bool(columns.any()):
        raise InvalidArgument(
            f"the {what} must be finite and not all zero, or no direction is active: look whether "
            "the data can be heard at all, and whether water_rows leaves anything"
        )


def _cut(vectors: Tensor, energies: Tensor, share: float) -> Subspace:
    held = energies.cumsum(0) / energies.sum()
    rank = min(len(energies), int((held < share * (1 - 1e-12)).sum()) + 1)
    return Subspace(basis=vectors[:, :rank].contiguous(), energies=energies)


def _draw(center: Velocity, over_m: float, drawn: torch.Generator) -> Tensor:
    """Smooth noise with a mean square of one."""
    noise = torch.randn(center.m_per_s.shape, generator=drawn).to(center.m_per_s)
    # Models are positive, and blurring keeps what is added to them.
    lifted = Velocity(m_per_s=noise - noise.min() + 1, spacing_m=center.spacing_m)
    blurred = smooth(lifted, over_m=over_m).m_per_s
    blurred = blurred - blurred.mean()
    return blurred / blurred.square().mean().sqrt()


def _squared_differences(d: Tensor) -> Tensor:
    """D^T D d."""
    total = torch.zeros_like(d)
    for side in range(d.dim()):
        step = d.diff(dim=side)
        length = step.shape[side]
        total.narrow(side, 1, length).add_(step)
        total.narrow(side, 0, length).sub_(step)
    return total
