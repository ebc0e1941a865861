"""Views of memory that is held already: the same bytes under other strides."""

import weakref

import torch
from torch import Tensor

from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.payloads import Aliased
from elbowroom.keep.activations.policy import Policy


class Aliases:
    """Which entry holds a region of memory, in one pass."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._regions: dict[tuple[int, int], weakref.ref[Entry]] = {}

    def clear(self) -> None:
        """Forget all: addresses are given anew."""
        self._regions.clear()

    def find(self, entry: Entry, tensor: Tensor) -> Aliased | None:
        """How the tensor follows from another view; else it is noted for views to come."""
        if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
            return None
        region = (tensor.untyped_storage()._cdata, int(tensor.storage_offset()))
        held = self._regions.get(region)
        source = None if held is None else held()
        if (
            source is not None
            and source is not entry
            and source.is_alive
            and source.version == entry.version
            and source.dtype == entry.dtype
            and source.nbytes_plain == entry.nbytes_plain
            and source.has_values
            and source.payload is not None
            and source.payload.method in ("encode", "keep", "offload")
            and (not source.is_near or self._policy.may_err(entry))
        ):
            source.uses.extend(entry.uses)
            return Aliased(source, entry.shape, tensor.stride())
        self._regions[region] = weakref.ref(entry)
        return None
