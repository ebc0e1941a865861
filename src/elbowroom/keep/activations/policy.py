"""How values are encoded: at which bound, with which dither."""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from elbowroom.codec import Blob, Bound, encode
from elbowroom.keep.activations.clock import now_s
from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.laps import Lap
from elbowroom.keep.activations.limits import Limits
from elbowroom.keep.activations.needs import class_of, is_exponent, largest_bound
from elbowroom.keep.activations.payloads import Coded, dense_form, take_sample
from elbowroom.keep.activations.sites import Form, Site

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})

# The first bound of a site, before anything is known of it, relative to the spread of its values:
# an error far below every tolerance, and still a sixth of the bytes; or a tenth, where memory is
# what matters and the first steps have to fit as well.
CAREFUL = 1 / 44
BOLD = 1 / 8

# Bytes saved for each that is held, from which on fewer are not worth an error.
ENOUGH = 18.5

# The codec dense takes two to three times as long as block: so much longer for each byte of the
# tensor, and as much as for a tensor of this size besides, in tables and calls. Where nobody counts
# seconds it is taken if it saves this share of those bytes.
CALL_BYTES = 1 << 20
LEAST_WORTH = 0.004

# Both codecs are tried on so many values.
_TRIED = 1 << 17

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
        limits: Limits | None = None,
    ) -> None:
        self.first = first
        self.limits = limits
        self.is_exact = is_exact
        self.is_local = is_local
        self.seed = seed
        self.step = 0
        self.is_sampling = False

    def pack(
        self, entry: Entry, tensor: Tensor, form: Form = Form.ENCODE, lap: Lap | None = None
    ) -> Coded | None:
        """The encoded tensor, or None where it had better be kept as it is.

        Args:
            entry: Of the tensor.
            tensor: What is to be held.
            form: BLOCK or DENSE; otherwise the smaller one where it is worth its time.
            lap: Of the pass: whether there is time to compare both codecs.
        """
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
            entry.is_open = site.bound is None
            return None
        entry.bound = bound
        # The mean of exp(e) is above one: without this all probabilities would be too large.
        shift = math.log(math.sinh(bound) / bound) if is_exponent(entry.uses) else 0.0
        blob = self._encode(site, dense, bound, form, lap)
        return Coded(blob, layout, shift=shift)

    def may_err(self, entry: Entry) -> bool:
        """Whether its readers may get errors: where they must not travel, only some may."""
        if self.limits is not None and self.limits.exact:
            if self.limits.keeps_exact(entry.site.key[0]):
                return False
        return not self.is_local or class_of(entry.uses) == "W"

    def may_follow(self, entry: Entry, sources: Iterable[Entry]) -> bool:
        """Whether it may be computed from these, which may have errors."""
        return self.may_err(entry) or not any(source.is_near for source in sources)

    def _encode(self, site: Site, dense: Tensor, bound: float, form: Form, lap: Lap | None) -> Blob:
        dither = self._seed_of(site.number)
        is_known = _SAME < bound * site.choice < 1 / _SAME
        if not is_known and (lap is None or lap.may_try()):
            start = now_s()
            self._try_both(site, dense, bound, dither)
            if lap is not None:
                lap.note_trial(now_s() - start)
        is_small = form is Form.DENSE
        if form not in (Form.BLOCK, Form.DENSE):
            is_small = site.saving * dense.nbytes > LEAST_WORTH * (dense.nbytes + CALL_BYTES)
        blob = _encoded(dense, bound, dither, site.likes, is_small=is_small)
        fast, small = site.likes
        site.likes = (fast, husk(blob)) if is_small else (husk(blob), small)
        site.is_small = is_small
        return blob

    def _try_both(self, site: Site, dense: Tensor, bound: float, dither: int) -> None:
        """A part of the tensor tells what the small codec would save."""
        part = _part_of(dense)
        fast, small = (
            _encoded(part, bound, dither, (None, None), is_small=small) for small in (False, True)
        )
        site.choice, site.gain = 1 / bound, fast.nbytes / small.nbytes
        site.saving = (fast.nbytes - small.nbytes) / max(1, part.nbytes)
        site.likes = (husk(fast), husk(small))

    def _seed_of(self, site: int) -> int:
        # Knuth's multiplicative hash of step and site: streams that do not repeat.
        return (self.seed + self.step * 2654435761 + site * 2246822519) % 2**32


def _encoded(
    dense: Tensor,
    bound: float,
    dither: int,
    likes: tuple[Blob | None, Blob | None],
    *,
    is_small: bool,
) -> Blob:
    return encode(
        dense,
        Bound.absolute(bound),
        dither=dither,
        codec="dense" if is_small else "block",
        effort="balanced",
        like=likes[is_small],
    )


def _part_of(dense: Tensor) -> Tensor:
    """The first of its outermost axis in memory, as many as fit into a trial, or one."""
    axes = [axis for axis in range(dense.ndim) if dense.shape[axis] > 1]
    if dense.numel() <= _TRIED or not axes:
        return dense
    outer = max(axes, key=dense.stride)
    return dense.narrow(outer, 0, max(1, dense.shape[outer] * _TRIED // dense.numel()))


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
