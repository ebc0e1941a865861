"""Codes of a block chunk to residuals and back: what earlier codes of the chunk say is taken away.

All arithmetic is modulo 2^32. `first` is the index of the chunk's first item in the array.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec.recipe import Predictor, Recipe

Codes = NDArray[np.int32]


def _rows(recipe: Recipe, first: int, n: int) -> Iterator[tuple[int, int, bool]]:
    """Begin and end of each row in the chunk, and whether the row above takes no part."""
    begin = 0
    while begin < n:
        row, column = divmod(first + begin, recipe.columns)
        end = min(n, begin + recipe.columns - column)
        yield begin, end, row % recipe.rows == 0 or begin < recipe.columns
        begin = end


def _differences(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return np.diff(values, prepend=np.uint32(0))


def predict(recipe: Recipe, codes: Codes, first: int) -> Codes:
    """Residuals of codes."""
    c = codes.view(np.uint32)
    columns = recipe.columns
    residuals = c.copy()
    if recipe.method == Predictor.LEFT:
        residuals = _differences(c)
    elif recipe.method == Predictor.ABOVE:
        residuals[columns:] -= c[: max(0, len(c) - columns)]
    elif recipe.method == Predictor.PLANE:
        for begin, end, top in _rows(recipe, first, len(c)):
            residuals[begin:end] = _differences(c[begin:end])
            if not top:
                residuals[begin:end] -= _differences(c[begin - columns : end - columns])
    return residuals.view(np.int32)


def restore(recipe: Recipe, residuals: Codes, first: int) -> Codes:
    """Codes of residuals."""
    c = residuals.view(np.uint32).copy()
    columns = recipe.columns
    if recipe.method == Predictor.LEFT:
        c = np.cumsum(c, dtype=np.uint32)
    elif recipe.method == Predictor.ABOVE:
        for begin in range(columns, len(c), columns):
            row = c[begin : begin + columns]
            row += c[begin - columns : begin - columns + len(row)]
    elif recipe.method == Predictor.PLANE:
        for begin, end, top in _rows(recipe, first, len(c)):
            c[begin:end] = np.cumsum(c[begin:end], dtype=np.uint32)
            if not top:
                c[begin:end] += c[begin - columns : end - columns]
    return c.view(np.int32)
