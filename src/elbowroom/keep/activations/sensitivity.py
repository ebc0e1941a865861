"""What an error in a kept tensor does to the gradient, in closed form.

An entry within a bound b has errors that are independent, with variance v = b^2 / 3 a value that
is not zero (zeros are exact). Two things follow from it:

* *local*: variance of the gradient of the parameters that the node itself owns, such as
  sum over outputs of g^2 for every weight of a convolution;
* *injected*: squared norm of the error in the gradient that the node hands on. What becomes of it
  upstream is another matter (transfer.py).

Both are linear in v as long as errors are small. Where they are not, the numbers are those of the
error that the entry has at present: what is of second order is in them, and the next refresh puts
right what the bounds of this one change.

The numbers are read from the gradients that pass by in backward; no pass is added.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from elbowroom.keep.activations.attention import FirstSample
from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.growth import (
    FUNCTIONS,
    change,
    changes,
    error_size,
    sample_of,
)
from elbowroom.keep.activations.journey import (
    Mode,
    Passage,
    channel_sums,
    energies,
    energy,
    some_rows,
)
from elbowroom.keep.activations.operators.effects import EFFECTS, SLOPED
from elbowroom.keep.activations.operators.record import Derivation
from elbowroom.keep.activations.transfer import (
    FEW_POSITIONS,
    axis_of,
    batch_gains,
    by_channel,
    gates_energy,
)


@dataclass(slots=True)
class Effect:
    """Per unit of error variance: on the node's own parameters, and on what it hands on."""

    local: dict[int, float] = field(default_factory=dict)
    """Variance of a parameter's gradient, by the parameter's id."""

    injected: dict[tuple[int, Mode], float] = field(default_factory=dict)
    """Squared norm, by the number of the node that receives it and by what it looks like."""

    handed_on: dict[tuple[int, int], float] = field(default_factory=dict)
    """The same as a share of the gradient that is handed on, by node and place."""

    largest: float = 0.0
    """Most that an error of one in every value can move one weight's gradient."""

    def add(self, other: "Effect", factor: float) -> None:
        """Add the other's numbers times the factor."""
        for place, share in other.handed_on.items():
            self.handed_on[place] = self.handed_on.get(place, 0.0) + factor * share
        for leaf, value in other.local.items():
            self.local[leaf] = self.local.get(leaf, 0.0) + factor * value
        for key, value in other.injected.items():
            self.injected[key] = self.injected.get(key, 0.0) + factor * value
        self.largest += factor**0.5 * other.largest

    def put(self, passage: Passage, place: int, value: float, mode: Mode = Mode.WHITE) -> None:
        """Charge the receiver of input `place`."""
        if place >= len(passage.record.following):
            return
        number, leaf = passage.record.following[place]
        if leaf:
            self.local[leaf] = self.local.get(leaf, 0.0) + value
        elif number:
            key, where = (number, mode), (passage.record.number, place)
            self.injected[key] = self.injected.get(key, 0.0) + value
            arrived = passage.energy(passage.inputs[place])
            if arrived > 0:
                self.handed_on[where] = self.handed_on.get(where, 0.0) + value / arrived


def effect_of(passage: Passage, slot: str, entry: Entry) -> Effect:
    """Of errors in the slot's tensor."""
    rule = _RULES.get((passage.record.kind, slot), _generic)
    effect = Effect()
    rule(passage, slot, entry, effect)
    return effect


def drift_of(p: Passage, slot: str, derivation: Derivation) -> Effect:
    """Of what errors add on average: a bent function of them is off to one side.

    Unlike errors that are independent it adds up over all rows of a product.
    """
    effect = Effect()
    source, kind = derivation.source, derivation.path[-1] if derivation.path else ""
    place = {("Addmm", "mat1"): 2, ("Mm", "self"): 1}.get((p.record.kind, slot))
    if place is None or sample_of(source) is None or kind not in FUNCTIONS:
        return effect
    found = changes(FUNCTIONS[kind], source)
    mean = sum(float(each.mean()) for each in found) / len(found)
    total = p.inputs[0] if p.record.kind == "Addmm" else None
    total = p.gradient().sum(0) if total is None else total
    width = p.record.entry(slot)
    count = 1 if width is None else width.shape[-1]
    effect.put(p, place, energy(total) * count * mean**2 / max(error_size(source) ** 2, 1e-30))
    return effect


def _slope(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    # By differences: a graph of our own would meet whatever hooks the caller has on.
    step = 1e-4
    return lambda x: (function(x + step) - function(x - step)) / (2 * step)


def _convolution(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    weight = p.record.entry("weight")
    if weight is None:
        return _generic(p, slot, entry, effect)
    g = p.gradient()
    taps = 1.0
    for size in weight.shape[2:]:
        taps *= size
    if p.record.details["transposed"]:
        for stride in p.record.details["stride"]:
            taps /= stride
        fan = weight.shape[0] / p.record.details["groups"]
    else:
        fan = float(weight.shape[1])
    effect.put(p, 1, p.energy(g) * fan * taps)
    if p.is_certified:
        effect.largest = float(channel_sums(g, 1).max())


def _product(first: str) -> Callable[[Passage, str, Entry, Effect], None]:
    """C = A @ B: an error in one factor goes into the other's gradient."""

    def rule(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
        g = p.gradient()
        inner = entry.shape[-1] if slot == first else entry.shape[-2]
        offset = 1 if p.record.kind in ("Addmm", "Baddbmm") else 0
        place = offset + (1 if slot == first else 0)
        effect.put(p, place, p.energy(g) * inner)
        if p.is_certified and slot == first and g.dim() == 2:
            effect.largest = float(channel_sums(g, 1).max())

    return rule


def _batch_norm(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    gains, scale = batch_gains(p), p.values("result2")
    if gains is None or scale is None:
        return _generic(p, slot, entry, effect)
    g, inverse = p.gradient(), scale.double().square()
    per_channel = by_channel(g)
    count = g.numel() / g.shape[1]
    slope = p.inputs[1]
    turned = per_channel if slope is None else slope.double().square()
    # x e: the same error twice.
    turned = turned + error_size(entry) ** 2 * inverse * per_channel
    hold = gains.square() * inverse / count
    effect.put(p, 1, float((inverse * per_channel).sum()))
    effect.put(p, 0, float((hold * turned).sum()))
    effect.put(p, 0, float((hold * per_channel).sum()), Mode.ALONG)


def _row_norm(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    """Of layers and of groups: each row has a mean and a scale."""
    scale, mean, weight = p.values("result2"), p.values("result1"), p.values("weight")
    if scale is None or mean is None:
        return _generic(p, slot, entry, effect)
    g = p.gradient()
    rows = scale.numel()
    inverse = scale.double().reshape(-1).square()
    plain = energies(g.reshape(rows, -1), [1])
    width = g.numel() // rows
    # Of some rows, how much of a weighted gradient lies along the normalised values.
    some = min(g.shape[0], -(-FEW_POSITIONS // (rows // g.shape[0])))
    part = rows // g.shape[0] * some
    h = g[:some] if weight is None else g[:some] * _weights(p, weight)
    x = entry.values()[:some].reshape(part, -1)
    x = (x - mean.reshape(-1, 1)[:part]) * scale.reshape(-1, 1)[:part]
    h = h.reshape(part, -1)
    weighted = h.double().square().sum(1)
    turned = (h * x).double().sum(1).square()
    first = plain[:part].sum()
    if not first > 0:
        return
    effect.put(p, 1, float((inverse * plain).sum()))
    weights = inverse.square()
    per_unit = float((weights * plain).sum() / (weights[:part] * plain[:part]).sum()) / width
    # x e: the same error twice.
    turned = turned + weighted * error_size(entry) ** 2 * inverse[:part]
    effect.put(p, 0, float((weights[:part] * turned).sum()) * per_unit)
    effect.put(p, 0, float((weights[:part] * weighted).sum()) * per_unit, Mode.ALONG)


def _weights(p: Passage, weight: Tensor) -> Tensor:
    if p.record.kind == "NativeLayerNorm":
        return weight
    return weight.view(-1, *[1] * (p.gradient().dim() - 2))


def _elementwise(
    slope: Callable[[Tensor], Tensor],
) -> Callable[[Passage, str, Entry, Effect], None]:
    """Dx = g f(x): the error is g (f(x + e) - f(x))."""

    def rule(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
        sample = sample_of(entry)
        if sample is None or sample.numel() == 0:
            return _generic(p, slot, entry, effect)
        effect.put(p, 0, p.energy(p.gradient()) * change(slope, entry))

    return rule


def _power(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    n = p.record.details.get("exponent")
    if not isinstance(n, int | float):
        return _generic(p, slot, entry, effect)
    _elementwise(lambda x: n * x ** (n - 1))(p, slot, entry, effect)


def _times(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    effect.put(p, 0 if slot == "other" else 1, p.energy(p.gradient()))


def _softmax(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    axis, g = axis_of(p), p.gradient()
    weight, some = (some_rows(each, axis).double() for each in (entry.values(), g))
    mean = (weight * some).sum(1, keepdim=True)
    rest = some - mean
    spread = weight.square().sum(1, keepdim=True)
    # Of e (g - m) - p (e g), where e is not zero.
    each = rest.square() + some.square() * spread - 2 * weight * some * rest
    is_there = weight != 0
    arrived = energy(some)
    if not arrived > 0:
        return
    share = float(each[is_there].sum()) / arrived / float(is_there.double().mean())
    effect.put(p, 0, share * p.energy(g))


def _log_softmax(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    g = p.gradient().float()
    total = g.sum(axis_of(p), keepdim=True)
    effect.put(p, 0, energy(entry.values().float().exp() * total))


def _cross_entropy(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    """Probabilities times exp(e) by its mean, but for those of the targets, which are exact."""
    target, found = p.values("target"), p.inputs[0]
    if target is None or found is None:
        return
    # Those to ignore have no gradient, wherever one looks.
    index = target.clamp(0, found.shape[1] - 1).unsqueeze(1)
    square = energy(found) - energy(found.gather(1, index))
    # Those that derive from others have errors without a bound of their own.
    bound = 3**0.5 * error_size(entry)
    if bound > 0:
        spread = bound / math.tanh(bound)
        effect.put(p, 0, square * (spread - 1) / spread / (bound**2 / 3))


def _attention(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    """Measured on the first sample: the backward once as it is, once with noise in the slot."""
    first = FirstSample.of(p.record)
    if first is None:
        return _generic(p, slot, entry, effect)
    if slot == "output" and first.is_balanced:
        # Nobody reads it here.
        return
    g = p.gradient()[:1].double()
    size = max(error_size(entry), 1e-3 * float(first.parts[slot].std()))
    if not size > 0:
        return
    plain, shaken = first.backward(g), first.shaken(slot, size).backward(g)
    for place, (a, b) in enumerate(zip(plain, shaken, strict=True)):
        effect.put(p, place, entry.shape[0] * energy(a - b) / size**2)


def limit_of(passage: Passage, slot: str) -> float:
    """The loosest bound for a slot, whatever it would cost."""
    if _RULES.get((passage.record.kind, slot)) is not _attention:
        return math.inf
    first = FirstSample.of(passage.record)
    return math.inf if first is None else first.largest_bound(slot)


def _recurrent(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    """What all steps left behind meets the gradients of the gates."""
    gates = gates_energy(p)
    if gates is None:
        return _generic(p, slot, entry, effect)
    effect.put(p, 2, gates * entry.shape[-1])


def _generic(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    """Nothing is known: the gradient's relative error is taken as twice the tensor's."""
    sample = sample_of(entry)
    if sample is None:
        return
    finite = sample[torch.isfinite(sample)]
    mean = float(finite.square().mean()) if finite.numel() else 0.0
    if not mean > 0:
        return
    for place, gradient in enumerate(p.inputs):
        effect.put(p, place, 4 * energy(gradient) / mean)


_Rule = Callable[[Passage, str, Entry, Effect], None]
_RULES: dict[tuple[str, str], _Rule] = {
    ("Convolution", "input"): _convolution,
    ("Addmm", "mat1"): _product("mat1"),
    ("Addmm", "mat2"): _product("mat1"),
    ("Mm", "self"): _product("self"),
    ("Mm", "mat2"): _product("self"),
    ("Bmm", "self"): _product("self"),
    ("Bmm", "mat2"): _product("self"),
    ("NativeBatchNorm", "input"): _batch_norm,
    ("NativeLayerNorm", "input"): _row_norm,
    ("NativeGroupNorm", "input"): _row_norm,
    ("Gelu", "self"): _elementwise(_slope(functional.gelu)),
    ("Silu", "self"): _elementwise(_slope(functional.silu)),
    ("Tanh", "result"): _elementwise(lambda y: 1 - y.square()),
    ("Sigmoid", "result"): _elementwise(lambda y: y - y.square()),
    ("Exp", "result"): _elementwise(lambda y: y),
    ("Pow", "self"): _power,
    ("Mul", "self"): _times,
    ("Mul", "other"): _times,
    ("Softmax", "result"): _softmax,
    ("SafeSoftmax", "result"): _softmax,
    ("LogSoftmax", "result"): _log_softmax,
    ("CrossEntropy", "logits"): _cross_entropy,
    ("MkldnnRnnLayer", "result0"): _recurrent,
    ("ScaledDotProductFlashAttentionForCpu", "query"): _attention,
    ("ScaledDotProductFlashAttentionForCpu", "key"): _attention,
    ("ScaledDotProductFlashAttentionForCpu", "value"): _attention,
    ("ScaledDotProductFlashAttentionForCpu", "output"): _attention,
}
_RULES.update(EFFECTS)
_RULES.update({(kind, "self"): _elementwise(_slope(made)) for kind, made in SLOPED.items()})
