"""How values are encoded: at which bound, with which dither."""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from elbowroom.codec import Blob, Bound, encode
from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.needs import class_of, is_exponent, largest_bound
from elbowroom.keep.activations.payloads import Coded, dense_form, take_sample
from elbowroom.keep.activations.sites import Site

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})

# The first bound of a site, before anything is known of it, relative to the spread of its values:
# an error far below every tolerance, and still a sixth of the bytes; or a tenth, where memory is
# what matters and the first steps have to fit as well.
CAREFUL = 1 / 44
BOLD = 1 / 8

# Bytes saved for each that is held, from which on fewer are not worth an error, and the faster
# codec is taken in more places.
ENOUGH = 18.5

# So much more is let be: codecs change for one tensor after another, and not by and by.
SPARE = 1.03

# The codec dense takes two to three times as long as block: so much longer for each byte of the
# tensor, and as much as for a tensor of this size besides, in tables and calls. It is taken where
# it saves this share of those bytes at least, a share between the two: that is where a second of it
# saves most.
CALL_BYTES = 1 << 20
LEAST_WORTH, MOST_WORTH = 0.004, 0.2

# A choice of codec holds while the bound stays within this factor.
_SAME = 0.8


class Policy:
    """Bounds of sites, and the encoding itself."""

    def __init__(
        self,
        *,
        is_exact: bool,
        is_local: bool,
        seed: int,
        first: float = CAREFUL,
    ) -> None:
        self.first = first
        self.worth = LEAST_WORTH
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
        if self.is_exact or not self.may_err(entry):
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
        entry.bound = bound
        # The mean of exp(e) is above one: without this all probabilities would be too large.
        shift = math.log(math.sinh(bound) / bound) if is_exponent(entry.uses) else 0.0
        return Coded(self._encode(site, dense, bound), layout, shift=shift)

    def may_err(self, entry: Entry) -> bool:
        """Whether its readers may get errors: where they must not travel, only some may."""
        return not self.is_local or class_of(entry.uses) == "W"

    def may_follow(self, entry: Entry, sources: Iterable[Entry]) -> bool:
        """Whether it may be computed from these, which may have errors."""
        return self.may_err(entry) or not any(source.is_near for source in sources)

    def _encode(self, site: Site, dense: Tensor, bound: float) -> Blob:
        within, dither = Bound.absolute(bound), self._seed_of(site.number)
        if not _SAME < bound * site.choice < 1 / _SAME:
            # Both ways once; which one is taken may change from pass to pass.
            small = encode(dense, within, dither=dither, codec="dense", effort="balanced")
            fast = encode(dense, within, dither=dither, codec="block")
            site.choice, site.gain = 1 / bound, fast.nbytes / small.nbytes
            site.saving = (fast.nbytes - small.nbytes) / max(1, dense.nbytes)
            site.likes = (husk(fast), husk(small))
            site.is_small = self._is_worth(site, dense.nbytes)
            return small if site.is_small else fast
        is_small = site.is_small = self._is_worth(site, dense.nbytes)
        blob = encode(dense, within, dither=dither, like=site.likes[is_small])
        fast, small = site.likes
        site.likes = (fast, husk(blob)) if is_small else (husk(blob), small)
        return blob

    def _is_worth(self, site: Site, nbytes: int) -> bool:
        """Whether the small codec is, of a tensor of this size: a part of a batch says as much."""
        return site.saving * nbytes > self.worth * (nbytes + CALL_BYTES)

    def adapt(self, ratio: float) -> None:
        """Once little is held, time is worth more than bytes."""
        if not ENOUGH <= ratio <= SPARE * ENOUGH:
            factor = min(max((ratio / ENOUGH) ** 2, 1 / 1.5), 1.5)
            self.worth = min(max(self.worth * factor, LEAST_WORTH), MOST_WORTH)

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
