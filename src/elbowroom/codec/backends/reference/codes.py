"""Items to codes and failed positions, and back: what every payload but raw begins with."""

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec.backends.reference import exact, lossy
from elbowroom.codec.backends.reference.numbers import Items
from elbowroom.codec.recipe import Recipe, Rule


def _carry_over(codes: NDArray[np.int32], stands: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Give a failed item the code of the item before it, 0 at the beginning."""
    source = np.maximum.accumulate(np.where(stands, np.arange(len(codes)), -1))
    return np.where(source >= 0, codes[source], np.int32(0))


def encode_codes(
    recipe: Recipe, items: Items, first: int, run: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Codes of a chunk's items and the positions of those that are stored as they are.

    After every `run` items the search for a failed item's predecessor begins anew.
    """
    if recipe.rule == Rule.EXACT:
        return exact.codes_of_items(recipe.dtype, items), np.zeros(0, dtype=np.int64)
    codes, stands = lossy.quantise(recipe, items, first)
    for begin in range(0, len(items), run):
        part = slice(begin, begin + run)
        codes[part] = _carry_over(codes[part], stands[part])
    return codes, np.flatnonzero(~stands)


def decode_codes(recipe: Recipe, codes: NDArray[np.int32], first: int) -> Items:
    """The items that a chunk's codes mean; failed ones are still to be put in their places."""
    if recipe.rule == Rule.EXACT:
        return exact.items_of_codes(recipe.dtype, codes)
    return lossy.reconstruct(recipe, codes, first)
