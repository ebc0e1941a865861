"""Views of one region of memory: the same bytes under other strides are held once."""

import weakref

import torch
from torch import Tensor

from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.payloads import Aliased
from elbowroom.keep.activations.policy import Policy

_WITH_VALUES = frozenset({"encode", "keep", "offload"})


class Aliases:
    """The regions that one pass has seen."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._regions: dict[tuple[int, int], weakref.ref[Entry]] = {}

    def clear(self) -> None:
        """The forward is over."""
        self._regions.clear()

    def find(self, entry: Entry, tensor: Tensor) -> Aliased | None:
        """Another entry that holds these values; without one, this entry stands for the region."""
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
            and source.payload.method in _WITH_VALUES
            and (not source.is_near or self._policy.may_err(entry))
        ):
            source.uses.extend(entry.uses)
            return Aliased(source, entry.shape, tensor.stride())
        self._regions[region] = weakref.ref(entry)
        return None
