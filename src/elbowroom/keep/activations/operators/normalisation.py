"""Normalisations: their output follows from their input and the exact statistics."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from elbowroom.keep.activations.needs import is_accumulator, kind_of
from elbowroom.keep.activations.operators.record import Derivation, Rule, held

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Record, Records


def layer_norm(node: Any, record: "Record", records: "Records", exact: bool) -> Derivation | None:
    """The output of a LayerNorm."""
    source, mean, scale = (held(record, slot) for slot in ("input", "result1", "result2"))
    weight, bias = (held(record, slot) for slot in ("weight", "bias"))
    if source is None or mean is None or scale is None or source.dtype != mean.dtype:
        return None
    if ("bias" in record.slots) != (bias is not None):
        return None

    def some() -> Tensor:
        rows, columns = source.coordinates((math.prod(mean.shape), -1))
        y = source.some_values() - mean.values().flatten()[rows]
        y.mul_(scale.values().flatten()[rows])
        for entry, join in ((weight, y.mul_), (bias, y.add_)):
            if entry is not None:
                join(entry.values().flatten()[columns])
        return y

    if exact:
        if record.eps is None:
            return None
        eps, shape = record.eps, tuple(node._saved_normalized_shape)

        def again() -> Tensor:
            return torch.native_layer_norm(
                source.values(),
                shape,
                None if weight is None else weight.values(),
                None if bias is None else bias.values(),
                eps,
            )[0]

        known = tuple(e for e in (weight, bias) if e is not None)
        return Derivation(
            ("NativeLayerNorm",), source, known, again, source.shape, source.dtype, some
        )

    def apply() -> Tensor:
        # With the exact mean and scale: those of the values within the bound would be biased.
        y = (source.values() - mean.values()).mul_(scale.values())
        if weight is not None:
            y.mul_(weight.values())
        return y if bias is None else y.add_(bias.values())

    others = tuple(e for e in (mean, scale, weight, bias) if e is not None)
    return Derivation(
        ("NativeLayerNorm",),
        source,
        others,
        apply,
        source.shape,
        source.dtype,
        some,
        norm=record.number,
        is_rounded=True,
    )


def batch_norm(node: Any, record: "Record", records: "Records", exact: bool) -> Derivation | None:
    """The output of a BatchNorm in training."""
    source, mean, scale = (held(record, slot) for slot in ("input", "result1", "result2"))
    affine = _affine_of(node, record)
    if source is None or mean is None or scale is None or affine is None:
        return None
    if not node._saved_training:
        return None
    (gain, bias), eps = affine, node._saved_eps

    def some() -> Tensor:
        channels = source.coordinates((*source.shape[:2], -1))[1]
        y = source.some_values() - mean.values()[channels]
        y = y * (scale.values() if gain is None else scale.values() * gain)[channels]
        return y if bias is None else y + bias[channels]

    def again() -> Tensor:
        x = source.values()
        return torch.native_batch_norm(x, gain, bias, None, None, True, 0.0, eps)[0]

    def within() -> Tensor:
        # With the exact mean and scale: those of the values within the bound would be biased.
        usual, spread = mean.values(), scale.values().pow(-2) - eps
        x = source.values()
        return torch.native_batch_norm(x, gain, bias, usual, spread, False, 0.0, eps)[0]

    if exact:
        return Derivation(("NativeBatchNorm",), source, (), again, source.shape, source.dtype, some)
    return Derivation(
        ("NativeBatchNorm",),
        source,
        (mean, scale),
        within,
        source.shape,
        source.dtype,
        some,
        norm=record.number,
        is_rounded=True,
    )


def group_norm(node: Any, record: "Record", records: "Records", exact: bool) -> Derivation | None:
    """The output of a GroupNorm."""
    source, mean, scale = (held(record, slot) for slot in ("input", "result1", "result2"))
    affine = _affine_of(node, record)
    if source is None or mean is None or scale is None or affine is None:
        return None
    if source.dtype != mean.dtype or len(source.shape) < 2:
        return None
    (gain, bias), eps, groups = affine, node._saved_eps, node._saved_group
    sizes = (source.shape[0], source.shape[1], math.prod(source.shape[2:]))
    by_channel = (1, -1, *[1] * (len(source.shape) - 2))

    def some() -> Tensor:
        channels = source.coordinates(sizes)[1]
        rows = source.coordinates((sizes[0] * groups, -1))[0]
        y = source.some_values() - mean.values().flatten()[rows]
        y = y * scale.values().flatten()[rows]
        y = y if gain is None else y * gain[channels]
        return y if bias is None else y + bias[channels]

    def again() -> Tensor:
        return torch.native_group_norm(source.values(), gain, bias, *sizes, groups, eps)[0]

    def within() -> Tensor:
        # With the exact mean and scale, spread over the channels of each group.
        each = (sizes[0], sizes[1], *by_channel[2:])
        factor, offset = (
            e.values().repeat_interleave(sizes[1] // groups, 1).view(each) for e in (scale, mean)
        )
        if gain is not None:
            factor = factor * gain.view(by_channel)
        offset = -offset * factor
        if bias is not None:
            offset = offset + bias.view(by_channel)
        return torch.addcmul(offset, source.values(), factor)

    if exact:
        return Derivation(("NativeGroupNorm",), source, (), again, source.shape, source.dtype, some)
    return Derivation(
        ("NativeGroupNorm",),
        source,
        (mean, scale),
        within,
        source.shape,
        source.dtype,
        some,
        norm=record.number,
        is_rounded=True,
    )


def _affine_of(node: Any, record: "Record") -> "tuple[Tensor | None, Tensor | None] | None":
    """Copies of weight and bias; None where one of them cannot be had.

    Backward itself does not read the bias, so that nobody would tell of a change.
    """
    weight = held(record, "weight")
    if weight is None and "weight" in record.slots:
        return None
    if weight is None and node.next_functions[1][0] is not None:
        return None
    gain = None if weight is None else weight.values().clone()
    last = node.next_functions[2][0]
    if last is None:
        # One that is not trained, or none: both look alike, but that a gain comes with a bias.
        return (None, None) if gain is None else None
    times = 1
    if kind_of(last) == "Repeat" and len(last._saved_repeats) == 1:
        times, last = last._saved_repeats[0], last.next_functions[0][0]
    if last is None or not is_accumulator(last):
        return None
    return gain, last.variable.detach().repeat(times)


RULES: dict[str, Rule] = {
    "NativeLayerNorm": layer_norm,
    "NativeBatchNorm": batch_norm,
    "NativeGroupNorm": group_norm,
}
"""How outputs follow from inputs."""
