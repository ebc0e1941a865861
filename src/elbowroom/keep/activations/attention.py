"""The backward of attention on the first sample of a batch: what noise in its parts does to it."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from elbowroom.keep.activations.entries import Record

# Standard deviation of a logit's error, beyond which the exponential is no longer nearly straight.
LOGIT_ERROR = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstSample:
    """Of what attention saves for its backward."""

    parts: dict[str, Tensor]
    """query, key, value and output."""

    logsumexp: Tensor
    bias: Tensor | None
    scale: float
    is_causal: bool
    is_balanced: bool
    """Whether output and logsumexp follow from the decoded queries, keys and values."""

    @classmethod
    def of(cls, record: Record) -> "FirstSample | None":
        """None where not all of it was saved."""
        held = [record.entry(name) for name in (*_PARTS, "logsumexp")]
        if any(entry is None for entry in held):
            return None
        q, k, v, o, lse = (e.values()[:1].double() for e in held if e is not None)
        mask = record.entry("attn_mask")
        bias = None if mask is None else mask.values()
        if bias is not None and bias.dim() == 4:
            bias = bias[:1]
        return cls(
            parts=dict(zip(_PARTS, (q, k, v, o), strict=True)),
            logsumexp=lse,
            bias=bias,
            scale=record.details["scale"] or q.shape[-1] ** -0.5,
            is_causal=record.details["is_causal"],
            is_balanced=record.details.get("is_balanced", False),
        )

    def largest_bound(self, name: str) -> float:
        """For queries and keys: with it, logits have errors of a quarter at most.

        Backward takes their exponential and divides by sums from before the error: what is too
        large is multiplied without limit, and queries and keys grow until the next look.
        """
        partner = {"query": "key", "key": "query"}.get(name)
        if partner is None:
            return math.inf
        longest = float(self.parts[partner].norm(dim=-1).max())
        # Uniform errors of a bound b have a standard deviation of b / sqrt(3) a value.
        return LOGIT_ERROR * math.sqrt(3) / max(self.scale * longest, 1e-30)

    def shaken(self, name: str, size: float) -> "FirstSample":
        """With noise of this standard deviation in one part."""
        part = self.parts[name]
        return replace(self, parts=self.parts | {name: part + size * white(part.shape)})

    def backward(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value."""
        q, k, v, o = (self.parts[name] for name in _PARTS)
        # Grouped queries: several heads of q share one of k and v.
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        s = q @ k.mT * self.scale
        if self.bias is not None:
            s = s + self.bias
        if self.is_causal:
            s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), float("-inf"))
        if self.is_balanced:
            weight = s.softmax(-1)
            o = weight @ v
        else:
            weight = (s - self.logsumexp.unsqueeze(-1)).exp()
        ds = weight * (g @ v.mT - (g * o).sum(-1, keepdim=True))
        dk, dv = ds.mT @ q * self.scale, weight.mT @ g
        if groups > 1:
            dk, dv = (d.unflatten(1, (-1, groups)).sum(2) for d in (dk, dv))
        return ds @ k * self.scale, dk, dv


_PARTS = ("query", "key", "value", "output")


def white(shape: torch.Size) -> Tensor:
    """The same noise every time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).double()
