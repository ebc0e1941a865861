"""The rule exact: a bijection between an item's pattern and one code or two."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec.backends.reference.numbers import NUMPY_TYPES, Items, wrap
from elbowroom.codec.recipe import Dtype

_HALVES = (Dtype.F16, Dtype.BF16)


def _sorted_patterns(patterns: NDArray[Any]) -> NDArray[Any]:
    """Negative patterns in reverse order below zero, so that codes sort as floats do.

    An involution: the sign stays, and the other bits are flipped twice.
    """
    mask = np.iinfo(patterns.dtype).max
    return np.where(patterns < 0, patterns ^ mask, patterns)


def codes_of_items(dtype: Dtype, items: Items) -> NDArray[np.int32]:
    """One code an item; for items of 8 bytes all high words, then all low words."""
    if dtype.item_bytes == 8:
        words = items.view(np.uint64)
        return (
            np.concatenate([words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)])
            .astype(np.uint32)
            .view(np.int32)
        )
    if dtype in _HALVES:
        return _sorted_patterns(items.view(np.int16)).astype(np.int32)
    if dtype == Dtype.F32:
        return _sorted_patterns(items.view(np.int32))
    if dtype == Dtype.BOOL:
        items = (items.view(np.uint8) != 0).view(np.uint8)
    return wrap(items)


def items_of_codes(dtype: Dtype, codes: NDArray[np.int32]) -> Items:
    """The inverse; of codes that no item has, the low bits count."""
    kind = NUMPY_TYPES[dtype]
    if dtype.item_bytes == 8:
        high, low = codes.view(np.uint32).astype(np.uint64).reshape(2, -1)
        return (high << np.uint64(32) | low).view(kind)
    if dtype in _HALVES:
        return _sorted_patterns(codes.astype(np.int16)).view(kind)
    if dtype == Dtype.F32:
        return _sorted_patterns(codes).view(kind)
    if dtype == Dtype.BOOL:
        return (codes & 1).astype(np.uint8).view(kind)
    return codes.astype(kind)
