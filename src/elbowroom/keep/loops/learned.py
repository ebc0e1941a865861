"""A learned model of frames: an autoencoder that is fit on the first ones, or was fit before."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from elbowroom.errors import InvalidArgument
from elbowroom.keep.loops.linear import STEP, Moments
from elbowroom.keep.loops.network import LEAST_BITS, MOST_BITS, Network, Weights
from elbowroom.keep.loops.patches import VALUES, Tiling
from elbowroom.keep.loops.predictive import PredictiveCoder

# Patches along each side of a window, which is what is learned from.
_WINDOW = {1: 24, 2: 5, 3: 3}
_MOST_WINDOWS = 256
_WINDOWS_A_FRAME = 24
_BATCH = 16

HIDDEN = 24
FIT_STEPS = 400
_RATE = 1e-3

# The size of values in units of the bound up to which that rate is good.
_USUAL = 10.0

# Bits of a value of the residual that is beyond the bound: its sign and place.
_PLACE_BITS = 6.0


class LearnedCoder(PredictiveCoder):
    """An autoencoder's prediction and a residual, where that is smaller than the plain coder.

    Without a network, one is fit on windows of the first frames that carry something: the same one
    for the same frames, whatever torch's random numbers are. A fit takes as long as a few hundred
    small steps of training do, and is made once. Pass `network=Network.load(path)` to skip it.
    """

    def __init__(
        self,
        dims: int | None = None,
        *,
        network: Network | None = None,
        fit_steps: int = FIT_STEPS,
    ) -> None:
        if fit_steps < 0:
            raise InvalidArgument(f"fit_steps must be a number from 0 on, got {fit_steps}")
        super().__init__(dims if network is None else network.dims)
        self._windows: list[Tensor] = []
        self._moments = Moments()
        self._fit_steps = fit_steps
        self._generator = torch.Generator().manual_seed(0)
        if network is not None:
            self.adopt(network)

    @property
    def network(self) -> Network | None:
        """The one in use, to be saved or passed to other coders."""
        return self.model if isinstance(self.model, Network) else None

    def learn(self, patches: Tensor, tiling: Tiling) -> None:
        """Gather windows until there are enough, and fit."""
        size = _WINDOW[tiling.dims]
        if min(tiling.counts) < size:
            return
        self._moments.add(patches)
        self._windows += self._drawn(patches, tiling, size)
        if len(self._windows) < _MOST_WINDOWS:
            return
        weights = self._start(tiling.dims)
        if weights is not None:
            windows = torch.stack(self._windows).to(torch.float32)
            weights = fit(weights, windows, tiling.dims, self._fit_steps, self._generator)
            bits = math.ceil(math.log2(1 + float(windows.abs().max()))) + 2
            self.adopt(Network(weights, tiling.dims, max(LEAST_BITS, min(MOST_BITS, bits))))
        self._windows, self._moments = [], Moments()

    def _drawn(self, patches: Tensor, tiling: Tiling, size: int) -> list[Tensor]:
        """Windows around patches in which something happens."""
        lively = torch.nonzero(torch.linalg.vector_norm(patches, dim=-1) > STEP)
        if not len(lively):
            return []
        count = min(_WINDOWS_A_FRAME, -(-len(lively) // size), _MOST_WINDOWS - len(self._windows))
        places = torch.randint(len(lively), (count,), generator=self._generator)
        found = []
        for batch, *middle in lively[places].tolist():
            part = patches[batch]
            for axis, at in enumerate(middle):
                first = max(0, min(at - size // 2, tiling.counts[axis] - size))
                part = part.narrow(axis, first, size)
            found.append(part.clone())
        return found

    def _start(self, dims: int) -> Weights | None:
        """Principal components, and hidden layers that do nothing yet."""
        basis = self._moments.basis()
        if basis is None:
            return None
        vectors = (basis.whole * 2.0**-basis.bits).to(torch.float32)
        codes = vectors.shape[1]
        seen = 3**dims * codes

        def noise() -> Tensor:
            return torch.randn(seen, HIDDEN, generator=self._generator) / seen**0.5

        return Weights(
            into=vectors / STEP,
            into_hidden=noise(),
            into_out=torch.zeros(HIDDEN, codes),
            linear=vectors.T * STEP,
            hidden=noise(),
            out=torch.zeros(HIDDEN, VALUES),
        )


def fit(
    weights: Weights, windows: Tensor, dims: int, steps: int, generator: torch.Generator
) -> Weights:
    """Fewer bits, for codes and residual together, by Adam.

    Rounding is taken for the identity in backward. Windows are of patches in units of the bound.
    """
    with _apart():
        leaves = {name: t.clone().requires_grad_() for name, t in weights.tensors().items()}
        learned = Weights(**leaves)
        moments = {name: (torch.zeros_like(t), torch.zeros_like(t)) for name, t in leaves.items()}
        # Weights that move by as much move a prediction by as many units as codes are large.
        highest = _RATE * min(1.0, _USUAL / float(windows.square().mean().sqrt()))
        for number in range(1, steps + 1):
            drawn = torch.randint(len(windows), (_BATCH,), generator=generator)
            loss = _bits(learned, windows[drawn], dims)
            found = torch.autograd.grad(loss, list(leaves.values()))
            rate = highest * (1 - (number - 1) / steps)
            with torch.no_grad():
                for (name, leaf), grad in zip(leaves.items(), found, strict=True):
                    _descend(leaf, grad, moments[name], rate, number)
    final = Weights(**{name: t.detach() for name, t in leaves.items()})
    is_sound = all(bool(t.isfinite().all()) for t in final.tensors().values())
    return final if is_sound else weights


@contextmanager
def _apart() -> Iterator[None]:
    """Gradients of our own: seen neither by hooks on saved tensors nor by autocast."""
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t)
    with torch.enable_grad(), hooks, torch.autocast("cpu", enabled=False):
        yield


def _bits(weights: Weights, windows: Tensor, dims: int) -> Tensor:
    """About as many as a value will take."""
    soft = weights.encoded(windows, dims)
    codes = soft + (soft.round() - soft).detach()
    beyond = functional.relu((windows - weights.decoded(codes, dims)).abs() - 0.8)
    size = codes.abs()
    for_codes = 2 * torch.log2(1 + size) + 2 * torch.tanh(size)
    for_rest = _PLACE_BITS * torch.tanh(beyond) + torch.log2(1 + beyond)
    return (for_codes.sum() + for_rest.sum()) / windows.numel()


def _descend(
    leaf: Tensor, grad: Tensor, moments: tuple[Tensor, Tensor], rate: float, number: int
) -> None:
    """A step of Adam (Kingma and Ba 2015)."""
    first, second = moments
    first.lerp_(grad, 0.1)
    second.lerp_(grad.square(), 0.01)
    corrected = (second / (1 - 0.99**number)).sqrt_().add_(1e-12)
    leaf.sub_(first / (1 - 0.9**number) / corrected, alpha=rate)
