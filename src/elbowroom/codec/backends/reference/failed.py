"""The list that ends block and dense chunks: positions of failed items, then the items."""

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec.backends.reference.numbers import NUMPY_TYPES, Items
from elbowroom.codec.recipe import Recipe, Rule
from elbowroom.errors import CorruptData


def pack_failed(items: Items, positions: NDArray[np.int64], position_type: str) -> bytes:
    """Positions as `position_type`, then the items at them."""
    return positions.astype(position_type).tobytes() + items[positions].tobytes()


def check_failed_count(recipe: Recipe, count: int, item_count: int) -> None:
    """Raise CorruptData unless a chunk of `item_count` items can have `count` failed ones."""
    most = 0 if recipe.rule == Rule.EXACT else item_count
    if count > most:
        raise CorruptData(f"failed: {count} items, at most {most} can be")


def place_failed(recipe: Recipe, items: Items, data: bytes, count: int, position_type: str) -> None:
    """Put failed items in their places; `data` has exactly the length of `count` of them."""
    kind = np.dtype(position_type)
    positions = np.frombuffer(data, dtype=kind, count=count).astype(np.int64)
    values = np.frombuffer(data, dtype=NUMPY_TYPES[recipe.dtype], offset=count * kind.itemsize)
    if count and (np.any(np.diff(positions) <= 0) or positions[-1] >= len(items)):
        raise CorruptData(f"failed: positions do not ascend within {len(items)} items")
    items[positions] = values
