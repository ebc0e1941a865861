"""A node in backward, and the ways of noise that passes through it."""

from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from elbowroom.keep.activations.entries import Record

Gradients = tuple[Tensor | None, ...]


class Mode(Enum):
    """What noise looks like."""

    WHITE = "white"
    CENTRED = "centred"
    """White, but for the average of each channel and for what lies along its normalised values."""

    ALONG = "along"
    """Along the normalised values of each channel."""


@dataclass(slots=True)
class Onward:
    """Of a unit of energy that arrives."""

    leaves: dict[int, float] = field(default_factory=dict)
    """What ends up in a parameter's gradient, by the parameter's id."""

    nodes: dict[tuple[int, Mode], float] = field(default_factory=dict)
    """What the node behind receives, by its number."""

    of_part: dict[int, float] = field(default_factory=dict)
    """Of the leaves, where the part of a batch that the meter runs differs from all of it."""


@dataclass(frozen=True, slots=True)
class Channels:
    """Of a normalisation over the batch or over groups, for the node behind it."""

    directions: Tensor
    """Normalised values of a few samples, and of some channels."""

    every: int
    """From one of those channels to the next."""

    batch: int
    handed_on: Tensor
    """Share of the noise that comes through each channel."""

    along: Tensor
    """Share of the normalisation's own errors in each channel."""

    is_apart: bool = False
    """Each sample is normalised by itself, in groups of channels."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A node in backward: its gradients on the way in and out."""

    record: Record
    outputs: Gradients
    """Of the node's outputs: what arrived."""

    inputs: Gradients
    """Of its inputs: what it hands on."""

    channels: Channels | None = None
    """Where a normalisation over the batch comes next."""

    is_certified: bool = False
    """Whether it counts how far an error can move one weight's gradient at most."""

    known: dict[int, float] = field(default_factory=dict[int, float])
    """Energies of its gradients, by the tensor's id."""

    def gradient(self) -> Tensor:
        """Of the first output that has one."""
        return next(g for g in self.outputs if g is not None)

    def energy(self, gradient: Tensor | None) -> float:
        """Of one of its gradients; read once."""
        if gradient is None:
            return 0.0
        if id(gradient) not in self.known:
            self.known[id(gradient)] = energy(gradient)
        return self.known[id(gradient)]

    def values(self, slot: str) -> Tensor | None:
        """What the node has saved there."""
        entry = self.record.entry(slot)
        return None if entry is None or not entry.has_values else entry.values()


Journey = dict[Mode, Onward]


def energy(gradient: Tensor | None) -> float:
    """Squared norm; of tensors that wrap others, such as nested ones, nothing is known."""
    if gradient is None or type(gradient) is not Tensor:
        return 0.0
    gradient = gradient.detach()
    if gradient.layout != torch.strided:
        gradient = gradient.coalesce().values() if gradient.is_sparse else gradient.to_dense()
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient.resolve_conj())
    return float(energies(gradient))


def energies(tensor: Tensor, axes: list[int] | None = None) -> Tensor:
    """Squared norms along axes, or of all of it, in double precision."""
    if not tensor.is_floating_point():
        tensor = tensor.float()
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    return torch.linalg.vector_norm(tensor, 2, axes, dtype=dtype).double().square()


def some_of(tensor: Tensor, count: int = 1 << 18) -> Tensor:
    """Every so many of what is along the first axis, for the mean of many alike."""
    few = max(8, len(tensor) * count // max(1, tensor.numel()))
    # An odd step meets all positions of rows, whose number is often a power of two.
    return tensor[:: max(1, len(tensor) // few - 1) | 1]


def some_rows(tensor: Tensor, axis: int, count: int = 1 << 16) -> Tensor:
    """Every so many of the rows along this axis, as a matrix."""
    is_last = axis in (-1, tensor.dim() - 1)
    if not is_last and axis != 0:
        # They would all be copied.
        tensor = tensor[:1]
    return some_of(tensor.movedim(axis, -1).reshape(-1, tensor.shape[axis]), count)


def channel_sums(tensor: Tensor, order: int) -> Tensor:
    """Of each channel, on the second axis: magnitudes to the power of the order, summed."""
    if tensor.dim() > 2 and tensor.is_contiguous():
        dtype = torch.promote_types(tensor.dtype, torch.float32)
        norms = torch.linalg.vector_norm(tensor.flatten(2), order, [2], dtype=dtype)
        return norms.double().pow(order).sum(0)
    # Torch's norms along the first axis take many times longer than rows that are added up.
    rows = tensor.movedim(1, -1).reshape(-1, tensor.shape[1])
    found = torch.zeros(tensor.shape[1], dtype=torch.float64, device=tensor.device)
    for some in rows.split(_ROWS):
        found += some.to(torch.promote_types(some.dtype, torch.float32)).abs().pow(order).sum(0)
    return found


_ROWS = 256


def onward(record: Record, shares: list[float], mode: Mode = Mode.WHITE) -> Onward:
    """By input; noise that is handed on has the mode."""
    found = Onward()
    for (number, leaf), share in zip(record.following, shares, strict=False):
        if leaf:
            found.leaves[leaf] = found.leaves.get(leaf, 0.0) + share
        elif number:
            key = (number, mode)
            found.nodes[key] = found.nodes.get(key, 0.0) + share
    return found
