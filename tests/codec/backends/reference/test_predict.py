"""Residuals: small cases by hand, and the inverse for every predictor."""

import numpy as np
import pytest

from elbowroom.codec.backends.reference.predict import predict, restore
from elbowroom.codec.recipe import Codec, Dtype, Predictor, Recipe


def recipe_of(method: Predictor, columns: int = 0, rows: int = 0) -> Recipe:
    return Recipe(codec=Codec.BLOCK, dtype=Dtype.I32, method=method, columns=columns, rows=rows)


def residuals_of(recipe: Recipe, codes: list[int], first: int = 0) -> list[int]:
    return predict(recipe, np.array(codes, np.int32), first).tolist()


def test_left_and_above() -> None:
    codes = [5, 7, 4, 4, 10]
    assert residuals_of(recipe_of(Predictor.NONE), codes) == codes
    assert residuals_of(recipe_of(Predictor.LEFT), codes) == [5, 2, -3, 0, 6]
    assert residuals_of(recipe_of(Predictor.ABOVE, 2), codes) == [5, 7, -1, -3, 6]
    assert residuals_of(recipe_of(Predictor.ABOVE, 9), codes) == codes


def test_differences_wrap() -> None:
    assert residuals_of(recipe_of(Predictor.LEFT), [2**31 - 1, -(2**31)]) == [2**31 - 1, 1]


def test_plane() -> None:
    # Planes of two rows of three.
    codes = [1, 2, 4, 11, 13, 16, 100, 101, 103, 110, 120, 130]
    expected = [1, 1, 2, 10, 1, 1, 100, 1, 2, 10, 9, 8]
    assert residuals_of(recipe_of(Predictor.PLANE, 3, 2), codes) == expected


def test_plane_in_a_chunk_that_begins_within_a_row() -> None:
    # Item 4 is column 1 of row 1. Row 2 begins a plane, row 3 has a whole row above it.
    codes = [5, 6, 10, 11, 12, 20, 22, 24, 30]
    expected = [5, 1, 10, 1, 1, 10, 1, 1, 30]
    assert residuals_of(recipe_of(Predictor.PLANE, 3, 2), codes, first=4) == expected
    # Item 1 is column 1 of row 0: row 1 starts 2 codes after the beginning, too early for a row
    # above.
    codes = [5, 6, 10, 11, 12, 20, 22, 24]
    expected = [5, 1, 10, 1, 1, 10, 1, 1]
    assert residuals_of(recipe_of(Predictor.PLANE, 3, 3), codes, first=1) == expected


@pytest.mark.parametrize("method", Predictor)
@pytest.mark.parametrize(
    ("columns", "rows"), [(1, 1), (1, 3), (3, 2), (7, 5), (64, 64), (2**32 - 1, 9)]
)
@pytest.mark.parametrize("first", [0, 65536, 131072])
@pytest.mark.parametrize("n", [0, 1, 2, 100, 1000])
def test_restore_is_the_inverse(
    method: Predictor, columns: int, rows: int, first: int, n: int
) -> None:
    recipe = recipe_of(method, columns, rows)
    codes = np.random.default_rng(n).integers(-(2**31), 2**31, n).astype(np.int32)
    residuals = predict(recipe, codes, first)
    assert restore(recipe, residuals, first).tolist() == codes.tolist()
