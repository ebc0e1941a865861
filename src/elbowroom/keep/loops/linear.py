"""A linear model of frames: the principal components of their patches."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from elbowroom.codec import Blob, Bound, encode
from elbowroom.keep.loops.patches import VALUES, Tiling
from elbowroom.keep.loops.predictive import MOST_CODE, PredictiveCoder

# Patches that carry something, before components are looked for.
ENOUGH_PATCHES = 1024

# A code's step in units of the bound. With 1 the residual is nearly empty and with 4 it takes as
# much as is saved; measured on waves, 3 is near the least at every bound.
STEP = 3.0

# Of a step, what a component must amount to in the mean to be kept.
_LEAST_SHARE = 0.05

# 20 bits of a code, 21 of a component and 6 for a sum of 64 products are 47 of 53.
_MOST_BITS = 20


@dataclass(frozen=True, slots=True)
class Basis:
    """Components as whole numbers, in units of 2^-bits."""

    whole: Tensor
    """64 x count, float64."""

    bits: int
    step: float
    blob: Blob
    """The same, as it would be written: its size is what the basis takes."""

    @classmethod
    def of(cls, vectors: Tensor, largest: float, step: float = STEP) -> "Basis":
        """Round orthonormal columns, finely enough for the largest coefficient in units."""
        bits = min(_MOST_BITS, max(8, math.ceil(math.log2(max(1.0, largest))) + 2))
        whole = torch.round(vectors.to(torch.float64) * 2**bits)
        blob = encode(whole.to(torch.int32), Bound.lossless())
        return cls(whole, bits, step, blob)

    @property
    def nbytes(self) -> int:
        """Of the components."""
        return self.blob.nbytes

    def analyse(self, patches: Tensor) -> Tensor:
        """The nearest whole number of steps along each component."""
        found = patches @ self.whole.to(patches.dtype)
        return found.mul_(2.0**-self.bits / self.step).round_().to(torch.float64)

    def predict(self, codes: Tensor) -> Tensor:
        """Exact but for the last product, which is rounded once."""
        return (codes @ self.whole.T) * (2.0**-self.bits * self.step)


class Moments:
    """Second moments of patches, from which components come."""

    def __init__(self) -> None:
        self._sum = torch.zeros(VALUES, VALUES, dtype=torch.float64)
        self._largest = 0.0
        self.count = 0

    def add(self, patches: Tensor) -> None:
        """Those that a code could say something about."""
        flat = patches.reshape(-1, VALUES).to(torch.float64)
        norms = torch.linalg.vector_norm(flat, dim=1)
        lively = flat[norms > STEP]
        self._sum += lively.T @ lively
        self.count += len(lively)
        self._largest = max(self._largest, float(norms.max()))

    def basis(self) -> Basis | None:
        """The components that pay; None where there is none, or one that no code can hold."""
        if self._largest > STEP * MOST_CODE or not bool(self._sum.isfinite().all()):
            return None
        values, vectors = torch.linalg.eigh(self._sum / max(1, self.count))
        sizes = values.clamp_min(0).sqrt()
        kept = vectors[:, sizes > _LEAST_SHARE * STEP].flip(1)
        return Basis.of(kept, self._largest) if kept.shape[1] else None


class LinearCoder(PredictiveCoder):
    """Patches by their principal components, found in the first frames that carry something.

    Until then, and where it is smaller, the plain coder is used. Components are looked for anew
    when they have stopped to pay.
    """

    def __init__(self, dims: int | None = None) -> None:
        super().__init__(dims)
        self._moments = Moments()

    def learn(self, patches: Tensor, tiling: Tiling) -> None:
        """Add up moments."""
        self._moments.add(patches)
        if self._moments.count >= ENOUGH_PATCHES and (basis := self._moments.basis()):
            self._moments = Moments()
            self.adopt(basis)

    def lost(self) -> None:
        """What frames show has changed, or was not yet all to be seen."""
        self.drop()
