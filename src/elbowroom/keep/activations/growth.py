"""How errors grow in functions, and on the way from a source to what derives from it."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from elbowroom.keep.activations.derive import Derived
from elbowroom.keep.activations.entries import Entry, Record
from elbowroom.keep.activations.journey import energy
from elbowroom.keep.activations.policy import spread

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Gelu": functional.gelu,
    "Silu": functional.silu,
}


def error_size(entry: Entry) -> float:
    """Standard deviation of the entry's errors: as they are, or as they are likely to be soon."""
    site = entry.site
    bound = site.bound if site.bound is not None else 0.5 * spread(site.sample)
    return bound / 3**0.5


def changes(function: Callable[[Tensor], Tensor], entry: Entry) -> list[Tensor]:
    """Of a function's values, by errors as large as the entry's."""
    sample, bound = entry.site.sample, 3**0.5 * error_size(entry)
    assert sample is not None
    x = sample.double()
    return [function(x + bound * place) - function(x) for place in _PLACES]


def change(function: Callable[[Tensor], Tensor], entry: Entry) -> float:
    """Mean squared change of a function by the entry's errors, for each unit of their variance."""
    found = changes(function, entry)
    total = sum(float(each.square().mean()) for each in found) / len(found)
    return total / max(error_size(entry) ** 2, 1e-30)


# Of an error that is uniform between -1 and 1, in the middle of six equal parts.
_PLACES = tuple((2 * i + 1) / 6 - 1 for i in range(6))


def path_factor(derived: Derived, records: dict[int, Record]) -> float:
    """How an error in the source grows on the way to what is derived from it (squared, mean)."""
    factor, derivation = 1.0, derived.derivation
    source = derivation.source
    if "NativeBatchNorm" in derivation.path:
        factor *= _channels_factor(derived, records)
    elif derived.signs is not None:
        mask = derived.signs.restore()
        factor *= float(mask.sum(dtype=torch.float64)) / max(1, mask.numel())
    for kind in derivation.path:
        if kind in ("Gelu", "Silu") and source.site.sample is not None:
            factor *= change(FUNCTIONS[kind], source)
        elif kind == "NativeLayerNorm":
            factor *= _norm_factor(records.get(derivation.norm))
    for mask in derivation.masks:
        factor *= _mask_factor(mask, is_masked=derivation.is_masked)
    return factor


def _norm_factor(record: Record | None) -> float:
    scale = None if record is None else record.entry("result2")
    if record is None or scale is None:
        return 1.0
    weight = record.entry("weight")
    gain = 1.0 if weight is None else float(weight.values().float().square().mean())
    return gain * float(scale.values().float().square().mean())


def _channels_factor(derived: Derived, records: dict[int, Record]) -> float:
    """Of a normalisation over the batch: each channel has its gain, and its share above zero."""
    record, signs = records.get(derived.derivation.norm), derived.signs
    if record is None or signs is None:
        return 1.0
    scale, weight = record.entry("result2"), record.entry("weight")
    if scale is None or weight is None:
        return 1.0
    gains = (scale.values().double() * weight.values().double()).square()
    mask = signs.restore().reshape(derived.derivation.source.shape)
    axes = [axis for axis in range(mask.dim()) if axis != 1]
    return float((gains * mask.double().mean(axes)).mean())


def _mask_factor(mask: Entry, *, is_masked: bool) -> float:
    """Mean square of its values: one that broadcasts has each of them equally often."""
    values = mask.values()
    # What it leaves out counts among what is not above zero, where that is known.
    count = int(values.count_nonzero()) if is_masked else values.numel()
    return energy(values) / max(1, count)
