"""What an error in a kept tensor does to the gradient, in closed form.

An entry within a bound b has errors that are independent, with variance v = b^2 / 3 a value that
is not zero (zeros are exact). Two things follow from it, both linear in v:

* *local*: variance of the gradient of the parameters that the node itself owns, such as
  sum over outputs of g^2 for every weight of a convolution;
* *injected*: squared norm of the error in the gradient that the node hands on. Upstream it is
  noise like the gradient's own from sample to sample: a share of the energy that arrives at the
  next node becomes the same share of the sampling variance of every parameter beyond it.

The numbers are read from the gradients that pass by in backward; no pass is added.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from elbowroom.keep.activations.entries import Entry, Record, Use

Gradients = tuple[Tensor | None, ...]


@dataclass(slots=True)
class Effect:
    """Per unit of error variance: on the node's own parameters, and on what it hands on."""

    local: dict[int, float] = field(default_factory=dict)
    """Variance of a parameter's gradient, by the parameter's id."""

    injected: dict[int, float] = field(default_factory=dict)
    """Squared norm, by the number of the node that receives it."""

    largest: float = 0.0
    """Most that an error of one in every value can move one weight's gradient."""

    def add(self, other: "Effect", factor: float) -> None:
        """Add the other's numbers times the factor."""
        for mine, theirs in ((self.local, other.local), (self.injected, other.injected)):
            for key, value in theirs.items():
                mine[key] = mine.get(key, 0.0) + factor * value
        self.largest += factor**0.5 * other.largest


@dataclass(frozen=True, slots=True)
class Passage:
    """A node in backward: its gradients on the way in and out."""

    record: Record
    outputs: Gradients
    """Of the node's outputs: what arrived."""

    inputs: Gradients
    """Of its inputs: what it hands on."""

    def gradient(self) -> Tensor:
        """Of the first output that has one."""
        return next(g for g in self.outputs if g is not None)

    def put(self, effect: Effect, place: int, value: float) -> None:
        """Charge the receiver of input `place`."""
        if place >= len(self.record.following):
            return
        number, leaf = self.record.following[place]
        if leaf:
            effect.local[leaf] = effect.local.get(leaf, 0.0) + value
        elif number:
            effect.injected[number] = effect.injected.get(number, 0.0) + value


def energy(gradient: Tensor | None) -> float:
    """Squared norm; of tensors that wrap others, such as nested ones, nothing is known."""
    if gradient is None or type(gradient) is not Tensor:
        return 0.0
    gradient = gradient.detach()
    if gradient.layout != torch.strided:
        gradient = gradient.coalesce().values() if gradient.is_sparse else gradient.to_dense()
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient.resolve_conj())
    flat = gradient.to(torch.float32).reshape(-1)
    return float(torch.dot(flat, flat))


def effect_of(passage: Passage, slot: str, entry: Entry) -> Effect:
    """Of errors in the slot's tensor."""
    rule = _RULES.get((passage.record.kind, slot), _generic)
    effect = Effect()
    rule(passage, slot, entry, effect)
    return effect


def path_factor(use: Use, entry: Entry, records: dict[int, Record]) -> float:
    """How an error in a derivation's source grows on the way to its output (squared, mean)."""
    factor = 1.0
    sample = entry.site.sample
    for kind in use.path:
        if kind == "Gelu" and sample is not None:
            factor *= float(_slope(functional.gelu, sample).square().mean())
        elif kind == "Silu" and sample is not None:
            factor *= float(_slope(functional.silu, sample).square().mean())
        elif kind == "NativeLayerNorm":
            factor *= _norm_factor(entry, records)
        elif kind == "Mul":
            factor *= _mask_factor(use, records)
    return factor


def _norm_factor(entry: Entry, records: dict[int, Record]) -> float:
    for use in entry.uses:
        record = records.get(use.number)
        if use.kind != "NativeLayerNorm" or record is None:
            continue
        scale, weight = record.entry("result2"), record.entry("weight")
        if scale is None:
            continue
        gain = 1.0 if weight is None else float(weight.values().float().square().mean())
        return gain * float(scale.values().float().square().mean())
    return 1.0


def _mask_factor(use: Use, records: dict[int, Record]) -> float:
    # E[mask^2] of a dropout that scales by 1 / (1 - p) is 1 / (1 - p); p is rarely above a half.
    return 1.1


def _slope(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    # By differences: a graph of our own would meet whatever hooks the caller has on.
    x, step = x.double(), 1e-4
    return (function(x + step) - function(x - step)) / (2 * step)


def _bend(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x, step = x.double(), 1e-3
    return (function(x + step) - 2 * function(x) + function(x - step)) / step**2


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
    p.put(effect, 1, energy(g) * fan * taps)
    axes = [axis for axis in range(g.dim()) if axis != 1]
    effect.largest = float(torch.linalg.vector_norm(g, 1, axes).max())


def _product(first: str) -> Callable[[Passage, str, Entry, Effect], None]:
    """C = A @ B: an error in one factor goes into the other's gradient."""

    def rule(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
        g = p.gradient()
        inner = entry.shape[-1] if slot == first else entry.shape[-2]
        offset = 1 if p.record.kind in ("Addmm", "Baddbmm") else 0
        place = offset + (1 if slot == first else 0)
        p.put(effect, place, energy(g) * inner)
        if slot == first and g.dim() == 2:
            effect.largest = float(torch.linalg.vector_norm(g, 1, 0).max())

    return rule


def _batch_norm(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    scale, weight = p.record.entry("result2"), p.record.entry("weight")
    g = p.gradient()
    if scale is None or scale.values().numel() != entry.shape[1]:
        return _generic(p, slot, entry, effect)
    inverse = scale.values().double()
    gain = torch.ones_like(inverse) if weight is None else weight.values().double()
    axes = [axis for axis in range(g.dim()) if axis != 1]
    per_channel = torch.linalg.vector_norm(g, 2, axes, dtype=torch.float32).double().square()
    count = g.numel() / g.shape[1]
    slope = p.inputs[1]
    turned = per_channel if slope is None else slope.double().square() + per_channel
    p.put(effect, 1, float((inverse.square() * per_channel).sum()))
    p.put(effect, 0, float((gain.square() * inverse.pow(4) * turned).sum() / count))


def _layer_norm(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    scale, weight = p.record.entry("result2"), p.record.entry("weight")
    if scale is None:
        return _generic(p, slot, entry, effect)
    g = p.gradient().float()
    width = 1 if weight is None else weight.values().numel()
    inverse = scale.values().double().reshape(-1)
    if weight is None:
        width = g.numel() // inverse.numel()
    rows = g.reshape(inverse.numel(), -1)
    plain = torch.linalg.vector_norm(rows, 2, 1).double().square()
    scaled = plain
    if weight is not None:
        weighted = rows * weight.values().reshape(-1)
        scaled = torch.linalg.vector_norm(weighted, 2, 1).double().square()
    p.put(effect, 1, float((inverse.square() * plain).sum()))
    # Of (s^2 + |g|^2) / C with s = <g, x>, the first is as large as the second on average.
    p.put(effect, 0, float((inverse.pow(4) * scaled).sum() * 2 / width))


def _elementwise(bend: Callable[[Tensor], Tensor]) -> Callable[[Passage, str, Entry, Effect], None]:
    """Dx = g f(x): the error is g f'(x) e."""

    def rule(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
        sample = entry.site.sample
        if sample is None or sample.numel() == 0:
            return _generic(p, slot, entry, effect)
        p.put(effect, 0, energy(p.gradient()) * float(bend(sample).square().mean()))

    return rule


def _power(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    n = p.record.details.get("exponent")
    if not isinstance(n, int | float):
        return _generic(p, slot, entry, effect)
    _elementwise(lambda x: n * (n - 1) * x.abs() ** max(n - 2, 0))(p, slot, entry, effect)


def _times(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    p.put(effect, 0 if slot == "other" else 1, energy(p.gradient()))


def _softmax(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    p.put(effect, 0, 1.5 * energy(p.gradient()))


def _log_softmax(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    g = p.gradient().float()
    axis = p.record.details["dim"]
    axis = axis - 2**64 if axis > 2**63 else axis
    total = g.sum(axis, keepdim=True)
    p.put(effect, 0, energy(entry.values().float().exp() * total))


def _attention(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    """Measured on the first sample: the backward once as it is, once with noise in the slot."""
    names = ("query", "key", "value", "output", "logsumexp")
    held = [p.record.entry(name) for name in names]
    if any(e is None for e in held):
        return _generic(p, slot, entry, effect)
    q, k, v, o, lse = (e.values()[:1].double() for e in held if e is not None)
    g = p.gradient()[:1].double()
    causal, scale = p.record.details["is_causal"], p.record.details["scale"] or q.shape[-1] ** -0.5
    mask = p.record.entry("attn_mask")
    bias = None if mask is None else mask.values()
    if bias is not None and bias.dim() == 4:
        bias = bias[:1]
    # Grouped queries: several heads of q share one of k and v.
    groups = q.shape[1] // k.shape[1]

    def shared(part: Tensor) -> Tensor:
        return part.repeat_interleave(groups, 1) if groups > 1 else part

    def summed(part: Tensor) -> Tensor:
        return part.unflatten(1, (-1, groups)).sum(2) if groups > 1 else part

    def backward(q: Tensor, k: Tensor, v: Tensor, o: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v = shared(k), shared(v)
        s = q @ k.mT * scale
        if bias is not None:
            s = s + bias
        if causal:
            s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), float("-inf"))
        weight = (s - lse.unsqueeze(-1)).exp()
        ds = weight * (g @ v.mT - (g * o).sum(-1, keepdim=True))
        return ds @ k * scale, summed(ds.mT @ q * scale), summed(weight.mT @ g)

    parts = [q, k, v, o]
    plain = backward(*parts)
    place = names.index(slot)
    size = 0.05 * float(parts[place].std())
    if not size > 0:
        return
    noise = torch.randn(parts[place].shape, generator=torch.Generator().manual_seed(1)).double()
    parts[place] = parts[place] + size * noise
    shaken = backward(*parts)
    batch = entry.shape[0]
    for place, (a, b) in enumerate(zip(plain, shaken, strict=True)):
        p.put(effect, place, batch * float((a - b).square().sum()) / size**2)


def _generic(p: Passage, slot: str, entry: Entry, effect: Effect) -> None:
    """Nothing is known: the gradient's relative error is taken as twice the tensor's."""
    sample = entry.site.sample
    if sample is None:
        return
    finite = sample[torch.isfinite(sample)]
    mean = float(finite.square().mean()) if finite.numel() else 0.0
    if not mean > 0:
        return
    for place, gradient in enumerate(p.inputs):
        p.put(effect, place, 4 * energy(gradient) / mean)


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
    ("NativeLayerNorm", "input"): _layer_norm,
    ("Gelu", "self"): _elementwise(lambda x: _bend(functional.gelu, x)),
    ("Silu", "self"): _elementwise(lambda x: _bend(functional.silu, x)),
    ("Tanh", "result"): _elementwise(lambda y: 2 * y),
    ("Sigmoid", "result"): _elementwise(lambda y: 1 - 2 * y),
    ("Exp", "result"): _elementwise(torch.ones_like),
    ("Pow", "self"): _power,
    ("Mul", "self"): _times,
    ("Mul", "other"): _times,
    ("Softmax", "result"): _softmax,
    ("SafeSoftmax", "result"): _softmax,
    ("LogSoftmax", "result"): _log_softmax,
    ("ScaledDotProductFlashAttentionForCpu", "query"): _attention,
    ("ScaledDotProductFlashAttentionForCpu", "key"): _attention,
    ("ScaledDotProductFlashAttentionForCpu", "value"): _attention,
    ("ScaledDotProductFlashAttentionForCpu", "output"): _attention,
}
