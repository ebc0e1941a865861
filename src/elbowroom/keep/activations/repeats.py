"""Tensors that were repeated along an axis and copied, such as the keys of grouped queries.

What attention saves of a key or value that serves several heads holds each of its values several
times. One of each is enough.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from elbowroom.keep.activations.masks import pack_sign
from elbowroom.keep.activations.needs import kind_of
from elbowroom.keep.activations.payloads import Coded, Layout, dense_form

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry


@dataclass(frozen=True, slots=True)
class Once:
    """One of each value, as it was."""

    dense: Tensor
    layout: Layout
    method: str = "keep"

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.dense.nbytes

    def restore(self) -> Tensor:
        """Make it again."""
        return self.layout.apply(self.dense)


def before_repeats(tensor: Tensor, node: Any) -> Tensor | None:
    """A view with strides of zero that has the tensor's values, or None where nothing repeats.

    `node` has made the tensor: a reshape of a copy of something expanded.
    """
    if node is None or kind_of(node) not in ("View", "UnsafeView") or not tensor.is_contiguous():
        return None
    copy = node.next_functions[0][0]
    if copy is None or kind_of(copy) != "Clone":
        return None
    wide = copy.next_functions[0][0]
    if wide is None or kind_of(wide) != "Expand":
        return None
    shape, narrow = tuple(copy._input_metadata[0].shape), tuple(wide._saved_self_sym_sizes)
    # Fewer values, and not by new axes in front: those of batches of matrices.
    if len(narrow) != len(shape) or not 0 < math.prod(narrow) < math.prod(shape):
        return None
    if math.prod(shape) != tensor.numel():
        return None
    one = tensor.view(shape)
    for axis, size in enumerate(narrow):
        one = one.narrow(axis, 0, size)
    one = one.expand(shape)
    return one if bool((one == tensor.view(shape)).all()) else None


def pack_once(thin: Tensor, entry: "Entry", coded: Coded | None) -> Once | Coded:
    """Of a tensor with strides of zero, in place of the entry's; encoded where it could be."""
    dense, layout = dense_form(thin)
    if layout is None or (coded is not None and coded.layout is None):
        raise ValueError("a tensor that repeats was expected to have strides of zero")
    layout = layout.to(entry.shape)
    if coded is None:
        return Once(dense.clone(), layout)
    sides = pack_sign(dense) if entry.bound > 0 and entry.has_step else None
    return replace(coded, layout=layout, sides=sides)
