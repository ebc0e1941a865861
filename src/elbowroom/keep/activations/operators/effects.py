"""What errors in saved tensors do to gradients, and how noise passes: kinds beside the first ones.

Each rule is a closed form. Errors are independent, with the same variance in each value.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from elbowroom.keep.activations.journey import Journey, Mode, Passage, energies, energy, onward

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry
    from elbowroom.keep.activations.sensitivity import Effect

EffectRule = Callable[[Passage, str, "Entry", "Effect"], None]
TransferRule = Callable[[Passage], Journey | None]

# Their gradient is that of the output times a slope of their input.
SLOPED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Hardswish": functional.hardswish,
    "Mish": functional.mish,
    "Softplus": functional.softplus,
    "LogSigmoid": functional.logsigmoid,
}


def _quotient(p: Passage, slot: str, entry: "Entry", effect: "Effect") -> None:
    """X / y hands -g x / y^2 to y."""
    other = p.values("other")
    if other is not None:
        effect.put(p, 1, energy(p.gradient() / other.square()))


def _row_norm(p: Passage, slot: str, entry: "Entry", effect: "Effect") -> None:
    """|x| hands g x / |x| to x."""
    norm = p.values("result")
    if norm is None:
        return
    width = entry.nbytes_plain // max(1, norm.numel() * norm.element_size())
    share = p.gradient() / norm.masked_fill(norm == 0, torch.inf)
    effect.put(p, 0, energy(share) * width)


def _product(p: Passage, slot: str, entry: "Entry", effect: "Effect") -> None:
    """C + A @ B, batch by batch: an error in one factor goes into the other's gradient."""
    place, inner = (2, entry.shape[-1]) if slot == "batch1" else (1, entry.shape[-2])
    effect.put(p, place, energy(p.gradient()) * inner)


EFFECTS: dict[tuple[str, str], EffectRule] = {
    ("Div", "self"): _quotient,
    ("RowNorm", "self"): _row_norm,
    ("Baddbmm", "batch1"): _product,
    ("Baddbmm", "batch2"): _product,
}


def _through_baddbmm(p: Passage) -> Journey | None:
    g = p.gradient()
    first, second = p.values("batch1"), p.values("batch2")
    shares = [1.0, 0.0, 0.0]
    if second is not None:
        shares[1] = energy(second) / (g.shape[0] * g.shape[-1])
    if first is not None:
        shares[2] = energy(first) / (g.shape[0] * g.shape[-2])
    return {Mode.WHITE: onward(p.record, shares)}


def through_factor(p: Passage, place: int, slot: str) -> float | None:
    """Share of noise that a factor which is broadcast gets from a product, as a sum.

    The gradient's own parts add up in that sum, and noise does not: what arrives is the noise times
    the other factor, value by value. It is taken to be largest where gradients are.
    """
    factor, g = p.values(slot), p.gradient()
    got = p.inputs[place] if place < len(p.inputs) else None
    if factor is None or got is None or got.numel() == g.numel():
        return None
    arrived = energy(g)
    return float(energies(g * factor)) / arrived if arrived > 0 else None


TRANSFERS: dict[str, TransferRule] = {"Baddbmm": _through_baddbmm}
