"""How noise in a gradient travels on to the parameters, in closed form.

Noise that arrives at a node has an energy, its squared norm. Of a unit of it, how much ends up in
the gradients of the node's own parameters, and how much is handed on to the nodes behind? Noise is
white, unlike a gradient, whose parts add up along the samples and positions of a batch: of a
convolution or a product it is the mean energy of an input that counts, and that of the weights.

Normalisation over a batch is no such mean. Its backward takes out of each channel the average and
what lies along the normalised values, and errors of its own lie along them. Both are directions
that the layer before it sees far more of than of others. What that layer makes of them is computed
on a few samples.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from elbowroom.keep.activations.attention import FirstSample, white
from elbowroom.keep.activations.journey import (
    Channels,
    Journey,
    Mode,
    Onward,
    Passage,
    channel_sums,
    energy,
    onward,
    some_of,
    some_rows,
)
from elbowroom.keep.activations.operators.effects import TRANSFERS, through_factor
from elbowroom.keep.activations.samples import part_of

# Samples on which directions are followed, and positions: more samples where each has only a few.
FEW = 8
FEW_POSITIONS = 1024
# Fewer of large ones: directions wait for the node behind, at the peak of a step.
LEAST, MOST_BYTES = 4, 32 << 20
# Samples that are normalised by themselves.
FEW_APART = 4
# Channels on which they are followed, and of what a layer reads, at least.
CHANNELS, CHANNELS_READ = 32, 64


def transfer_of(passage: Passage) -> Journey:
    """What becomes of noise at this node."""
    record = passage.record
    rule = _RULES.get(record.kind)
    found = None if rule is None else rule(passage)
    if found is None:
        found = {Mode.WHITE: onward(record, _generic(passage))}
    return found


def reads_values(kind: str) -> bool:
    """Whether what such a node has saved tells something about noise."""
    return kind in _RULES


def _generic(p: Passage) -> list[float]:
    """As much as of the gradient; a leaf gets it all, as it does through a sum or a selection."""
    following = p.record.following
    if p.record.kind in _WHOLE:
        return [1.0] * len(following)
    arrived = sum(p.energy(g) for g in p.outputs)
    shares: list[float] = []
    for (number, leaf), gradient in zip(following, p.inputs, strict=False):
        if leaf or not number or not arrived > 0:
            shares.append(1.0)
        else:
            shares.append(p.energy(gradient) / arrived)
    return shares


def _cat(p: Passage) -> Journey:
    total = p.gradient().numel()
    shares = [0.0 if g is None else g.numel() / total for g in p.inputs]
    return {Mode.WHITE: onward(p.record, shares)}


def _times(p: Passage) -> Journey:
    shares = _generic(p)
    for place, slot in enumerate(("other", "self")):
        if place < len(shares) and p.record.following[place][1]:
            factor = p.values(slot)
            if factor is not None:
                shares[place] = energy(factor) / factor.numel()
        elif place < len(shares):
            share = through_factor(p, place, slot)
            shares[place] = shares[place] if share is None else share
    return {Mode.WHITE: onward(p.record, shares)}


def _convolution(p: Passage) -> Journey | None:
    x, weight = p.values("input"), p.values("weight")
    if x is None or weight is None:
        return None
    g, details = p.gradient(), p.record.details
    groups, is_transposed = details["groups"], details["transposed"]
    rows = g.numel() / g.shape[1]
    taps = 1.0
    for size in weight.shape[2:]:
        taps *= size
    for stride in details["stride"]:
        taps /= 1 if is_transposed else stride
    # Each position of the output sees a patch of the input.
    few = some_of(x)
    patch = energy(few) * len(x) / len(few) * taps / (groups * rows)
    back = x.numel() / x.shape[1] / rows if is_transposed else 1.0
    share = energy(weight) / g.shape[1] * back
    journey = {Mode.WHITE: onward(p.record, [share, patch, 1.0])}
    if p.channels is None or groups > 1:
        return journey
    axes = [axis for axis in range(x.dim()) if axis != 1]
    mean = few.mean(axes, keepdim=True)
    centred = patch - float(mean.double().square().sum()) * x.numel() / x.shape[1] * taps / rows

    every, step = p.channels.every, max(1, x.shape[1] // CHANNELS_READ)
    part = weight[::step, ::every] if is_transposed else weight[::every, ::step]

    def product(some: slice, directions: Tensor) -> Tensor:
        found = torch.ops.aten.convolution_backward(
            directions,
            (x[some, ::step] - mean[:, ::step]) * step**0.5,
            part,
            None,
            list(details["stride"]),
            list(details["padding"]),
            list(details["dilation"]),
            is_transposed,
            list(details["output_padding"]),
            groups,
            [False, True, False],
        )[1]
        return found.transpose(0, 1).flatten(1) if is_transposed else found.flatten(1)

    of_weights = weight.transpose(0, 1) if is_transposed else weight
    norms = of_weights.flatten(1).double().square().sum(1) * back
    return journey | _towards(p, product, centred, norms, rows)


def _linear(p: Passage) -> Journey | None:
    """C = b + A @ B."""
    g = p.gradient()
    first, second = p.values("mat1"), p.values("mat2")
    rows, width = g.shape
    shares = [1.0, 0.0, 0.0]
    if second is not None:
        shares[1] = energy(second) / width
    if first is not None:
        shares[2] = energy(first) / rows
    journey = {Mode.WHITE: onward(p.record, shares)}
    if p.channels is None or first is None or second is None:
        return journey
    mean, step = first.mean(0), max(1, first.shape[1] // CHANNELS_READ)
    centred = shares[2] - float(mean.double().square().sum())

    def product(some: slice, directions: Tensor) -> Tensor:
        return directions.mT @ (first[some, ::step] - mean[::step]) * step**0.5

    norms = second.double().square().sum(0)
    # The order of inputs is that of a convolution but for the bias, which centred noise spares.
    found = _towards(p, product, centred, norms, rows, places=(1, 2))
    return journey | found


def _towards(
    p: Passage,
    product: Callable[[slice, Tensor], Tensor],
    centred: float,
    norms: Tensor,
    rows: float,
    places: tuple[int, int] = (0, 1),
) -> Journey:
    """Noise that comes from a normalisation over the batch.

    `product` gives what directions of some samples add to the weights' gradient, `centred` is the
    mean energy of what a position of the output sees, without its average.
    """
    assert p.channels is not None
    channels = p.channels
    if channels.is_apart:
        return {Mode.ALONG: _along_samples(p, channels, product, norms, places)}
    few = channels.directions.shape[0]
    half = max(1, few // 2)
    parts = [slice(0, half), slice(half, 2 * half)] if few > 1 else [slice(0, 1)]
    count = channels.directions[parts[0]].numel() / channels.directions.shape[1]
    products = [product(some, channels.directions[some]).double() / count for some in parts]
    own = sum(each.square().sum(1) for each in products) / len(products)
    # Between samples only what they have in common counts, however many there are.
    common = (products[0] * products[-1]).sum(1)
    seen, seen_of_part = (
        (share * own + (1 - share) * common).clamp_min(0)
        for share in (min(1.0, half / count) for count in (channels.batch, part_of(channels.batch)))
    )
    journey: Journey = {}
    for mode, weights in ((Mode.CENTRED, channels.handed_on), (Mode.ALONG, channels.along)):
        total = float(weights.sum())
        if not total > 0:
            weights, total = torch.ones_like(weights), float(weights.numel())
        found: list[Onward] = []
        for each in (seen, seen_of_part):
            some = weights[:: channels.every]
            along = float((some * each).sum() / some.sum().clamp_min(1e-300))
            shares = [0.0, 0.0, 0.0]
            shares[places[0]] = float((weights * norms).sum()) / total
            shares[places[1]] = max(0.0, centred - along) if mode is Mode.CENTRED else rows * along
            found.append(onward(p.record, shares))
        found[0].of_part = found[1].leaves
        journey[mode] = found[0]
    return journey


def _along_samples(
    p: Passage,
    channels: Channels,
    product: Callable[[slice, Tensor], Tensor],
    norms: Tensor,
    places: tuple[int, int],
) -> Onward:
    """Errors of samples have nothing to do with one another."""
    directions = channels.directions
    positions = directions[0].numel() / directions.shape[1]
    seen = 0.0
    for sample in range(directions.shape[0]):
        some = slice(sample, sample + 1)
        seen += energy(product(some, directions[some])) / directions.shape[1]
    shares = [0.0, 0.0, 0.0]
    shares[places[0]] = float(norms.mean())
    shares[places[1]] = seen / directions.shape[0] / positions
    return onward(p.record, shares)


def _product(p: Passage) -> Journey | None:
    """C = A @ B, also of batches of matrices."""
    g = p.gradient()
    first, second = p.values("self"), p.values("mat2")
    batches = g.numel() / (g.shape[-2] * g.shape[-1])
    shares = [0.0, 0.0]
    if second is not None:
        shares[0] = energy(second) / (batches * g.shape[-1])
    if first is not None:
        shares[1] = energy(first) / (batches * g.shape[-2])
    return {Mode.WHITE: onward(p.record, shares)}


def _batch_norm(p: Passage) -> Journey | None:
    gains = batch_gains(p)
    if gains is None:
        return None
    shares = [float(gains.square().mean()), 1.0, 1.0]
    return {Mode.WHITE: onward(p.record, shares, Mode.CENTRED)}


def batch_gains(p: Passage) -> Tensor | None:
    """What the gradient of a channel is multiplied by; None where the statistics are given."""
    scale, weight = p.values("result2"), p.values("weight")
    if scale is None or scale.numel() != p.gradient().shape[1]:
        return None
    return scale.double() if weight is None else scale.double() * weight.double()


def channels_of(p: Passage) -> Channels | None:
    """Of a normalisation over the batch or over groups, for the node behind it."""
    kind = p.record.kind
    if kind not in ("NativeBatchNorm", "NativeGroupNorm"):
        return None
    x, mean, scale = p.values("input"), p.values("result1"), p.values("result2")
    if x is None or mean is None or scale is None or not scale.numel():
        return None
    every = max(1, x.shape[1] // CHANNELS)
    if kind == "NativeGroupNorm":
        some = x[:FEW_APART].reshape(min(FEW_APART, x.shape[0]), mean.shape[1], -1)
        directions = (some - mean[:FEW_APART, :, None]) * scale[:FEW_APART, :, None]
        directions = directions.view(-1, *x.shape[1:])[:, ::every]
        ones = torch.ones(x.shape[1], dtype=torch.float64, device=x.device)
        return Channels(directions.to(x.dtype), every, x.shape[0], ones, ones, is_apart=True)
    gains = batch_gains(p)
    if gains is None:
        return None
    positions = x[0].numel() // x.shape[1]
    few = max(FEW, -(-FEW_POSITIONS // positions))
    few = min(x.shape[0], few, max(LEAST, MOST_BYTES // x[0].nbytes))
    shape = (-1, *[1] * (x.dim() - 2))
    directions = x[:few, ::every] - mean[::every].view(shape)
    directions = directions * scale[::every].view(shape)
    along = gains.square() * scale.double().square() * by_channel(p.gradient())
    return Channels(directions.to(x.dtype), every, x.shape[0], gains.square(), along)


def by_channel(g: Tensor) -> Tensor:
    """Energies of channels."""
    return channel_sums(g, 2)


def _row_norm(p: Passage) -> Journey | None:
    """Of layers and of groups."""
    scale, weight = p.values("result2"), p.values("weight")
    if scale is None:
        return None
    gain = 1.0 if weight is None else energy(weight) / weight.numel()
    shares = [energy(scale) / scale.numel() * gain, 1.0, 1.0]
    return {Mode.WHITE: onward(p.record, shares)}


def _softmax(p: Passage) -> Journey | None:
    result = p.values("result")
    if result is None:
        return None
    axis = axis_of(p)
    some = some_rows(result, axis).double()
    square = some.square()
    spread = square.sum(1, keepdim=True)
    share = (square * (1 - 2 * some + spread)).mean()
    return {Mode.WHITE: onward(p.record, [float(share)])}


def _log_softmax(p: Passage) -> Journey | None:
    result = p.values("result")
    if result is None:
        return None
    axis = axis_of(p)
    square = (2 * some_rows(result, axis).double()).exp().sum(1)
    return {Mode.WHITE: onward(p.record, [1 + float(square.mean()) - 2 / result.shape[axis]])}


def _attention(p: Passage) -> Journey | None:
    """Measured on the first sample."""
    first = FirstSample.of(p.record)
    if first is None:
        return None
    noise = white(first.parts["output"].shape)
    shares = [energy(part) / energy(noise) for part in first.backward(noise)]
    return {Mode.WHITE: onward(p.record, shares)}


def _recurrent(p: Passage) -> Journey | None:
    gates, x, states = gates_energy(p), p.values("input"), p.values("result0")
    arrived = p.energy(p.outputs[0])
    if gates is None or x is None or states is None or not arrived > 0:
        return None
    share, rows = gates / arrived, x.numel() / x.shape[-1]
    back = p.energy(p.inputs[0]) / arrived
    shares = [back, share * energy(x) / rows, share * energy(states) / rows, share, share]
    return {Mode.WHITE: onward(p.record, shares)}


def gates_energy(p: Passage) -> float | None:
    """Of the gradients of a recurrent layer's gates: what its input gets came through weights."""
    weight = p.values("weight0")
    if weight is None or p.inputs[0] is None:
        return None
    return p.energy(p.inputs[0]) * weight.shape[0] / max(energy(weight), 1e-30)


def axis_of(p: Passage) -> int:
    """Over which a softmax runs; autograd shows it without a sign."""
    axis = p.record.details["dim"]
    return axis - 2**64 if axis > 2**63 else axis


_Rule = Callable[[Passage], Journey | None]
_RULES: dict[str, _Rule] = {
    "Convolution": _convolution,
    "Addmm": _linear,
    "Mm": _product,
    "Bmm": _product,
    "NativeBatchNorm": _batch_norm,
    "NativeLayerNorm": _row_norm,
    "NativeGroupNorm": _row_norm,
    "Softmax": _softmax,
    "SafeSoftmax": _softmax,
    "LogSoftmax": _log_softmax,
    "MkldnnRnnLayer": _recurrent,
    "ScaledDotProductFlashAttentionForCpu": _attention,
    "Mul": _times,
    "Cat": _cat,
    **TRANSFERS,
}
# What comes in goes out, to every input, however it is arranged or summed.
_WHOLE = frozenset(
    """View UnsafeView ReshapeAlias Unsqueeze Squeeze Alias ViewAsReal T Transpose Permute Clone
    Expand Select Slice Split SplitWithSizes Unbind Add Sub Neg Embedding ToCopy Index Pad
    ConstantPadNd Roll Flip Unfold AsStrided""".split()
)
