"""What is held of a tensor of which backward does not read the values themselves."""

from torch import Tensor

from elbowroom.keep.activations.bands import pack_bands
from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.masks import pack_sign
from elbowroom.keep.activations.needs import Need, need_of
from elbowroom.keep.activations.payloads import Nothing, Payload
from elbowroom.keep.activations.windows import pack_windows


def part_of(entry: Entry, tensor: Tensor) -> Payload | None:
    """None where that serves nobody, or not all."""
    needs = entry.needs
    if needs == {Need.NOTHING}:
        return Nothing(entry.shape, tensor.stride(), entry.dtype, entry.device)
    if Need.WINDOW in needs:
        windows = entry.windows
        return None if windows is None else pack_windows(tensor, windows)
    if Need.BANDS in needs:
        # One set of limits serves one reader.
        readers = sum(need_of(use.kind, use.slot) is not Need.NOTHING for use in entry.uses)
        if entry.bands is None or readers > 1:
            return None
        return pack_bands(tensor, entry.bands, entry.site.like)
    return pack_sign(tensor) if tensor.is_floating_point() else None
