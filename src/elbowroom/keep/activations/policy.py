"""How values are encoded: at which bound, with which dither."""

import numpy as np
import torch
from torch import Tensor

from elbowroom.codec import Blob, Bound, encode
from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.needs import class_of, largest_bound
from elbowroom.keep.activations.payloads import Coded, dense_form, take_sample

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})

# The first bound of a site, before anything is known of it, relative to the spread of its values:
# an error far below every tolerance, and still a fifth of the bytes; or a tenth, where memory is
# what matters and the first steps have to fit as well.
CAREFUL = 1 / 64
BOLD = 1 / 8


class Policy:
    """Bounds of sites, and the encoding itself."""

    def __init__(
        self, *, is_exact: bool, is_local: bool, seed: int, first: float = CAREFUL
    ) -> None:
        self.first = first
        self.is_exact = is_exact
        self.is_local = is_local
        self.seed = seed
        self.step = 0
        self.is_sampling = False

    def pack(self, entry: Entry, tensor: Tensor) -> Coded | None:
        """The encoded tensor, or None where it had better be kept as it is."""
        site = entry.site
        if tensor.dtype not in _FLOATS:
            if tensor.is_complex():
                return None
            dense, layout = dense_form(tensor)
            return Coded(encode(dense, Bound.lossless(), like=site.like), layout)
        if self.is_exact or site.is_kept or (self.is_local and class_of(entry.uses) != "W"):
            return None
        dense, layout = dense_form(tensor)
        if site.bound is None or self.is_sampling:
            site.sample = take_sample(dense).to("cpu", torch.float32)
        bound = site.bound
        if bound is None:
            bound = self.first * spread(site.sample)
        bound = min(bound, largest_bound(entry.uses))
        if not bound > 0 or bound == float("inf"):
            return None
        blob = encode(
            dense, Bound.absolute(bound), dither=self._seed_of(site.number), like=site.like
        )
        entry.bound = bound
        return Coded(blob, layout)

    def _seed_of(self, site: int) -> int:
        # Knuth's multiplicative hash of step and site: streams that do not repeat.
        return (self.seed + self.step * 2654435761 + site * 2246822519) % 2**32


def spread(sample: Tensor | None) -> float:
    """Root mean square of what is finite and not zero, about the mean."""
    if sample is None:
        return 0.0
    values = sample[torch.isfinite(sample) & (sample != 0)]
    return float(values.std(correction=0)) if values.numel() > 1 else float(values.abs().sum())


def husk(blob: Blob) -> Blob:
    """The blob's choices without its payload."""
    return Blob(
        blob._recipe,
        blob.bound,
        blob.kind,
        blob.shape,
        blob._order,
        blob.item_count,
        np.empty((0, 2), np.uint32),
        (),
        blob.payload_nbytes,
        blob.device,
        blob._exponent,
    )
