"""Lanes, neighbours, prediction and contexts, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from elbowroom.codec.backends.reference.model import Lanes, Walk, bucket
from elbowroom.codec.backends.reference.rans import LANES
from elbowroom.codec.recipe import Codec, Dtype, Model, Recipe

RECIPE = Recipe(codec=Codec.DENSE, dtype=Dtype.I32)


@pytest.mark.parametrize(
    ("columns", "rows", "n", "unit", "length"),
    [
        (0, 0, 1, 1, 1),
        (0, 0, 65, 1, 2),
        (0, 5, 6400, 1, 100),
        (10, 0, 6400, 10, 100),
        (10, 5, 6400, 50, 100),
        # 64 x 120 is above 6400 + 800; rows of 40 need 120 as well.
        (40, 3, 6400, 1, 100),
        # 64 x 110 is not.
        (55, 2, 6400, 110, 110),
        (22, 7, 6400, 22, 110),
        (2**32 - 1, 2**32 - 1, 6400, 1, 100),
    ],
)
def test_length_of_a_lane(columns: int, rows: int, n: int, unit: int, length: int) -> None:
    lanes = Lanes(replace(RECIPE, columns=columns, rows=rows), n)
    assert (lanes.unit, lanes.length) == (unit, length)


def test_words_of_8_bytes_have_no_rows() -> None:
    assert Lanes(Recipe(codec=Codec.DENSE, dtype=Dtype.I64, columns=10), 6400).unit == 1


def test_lanes_are_runs_of_codes() -> None:
    lanes = Lanes(RECIPE, 130)
    cut = lanes.cut(np.arange(1, 131, dtype=np.int32))
    assert cut.shape == (3, LANES)
    assert cut[:, 0].tolist() == [1, 2, 3]
    assert cut[:, 43].tolist() == [130, 0, 0]
    assert cut[:, 63].tolist() == [0, 0, 0]


def neighbours(columns: int, rows: int, length: int) -> list[tuple[int, ...]]:
    """Left, above, above left, above right of codes 1, 2, 3 ... in lane 0."""
    lanes = Lanes(replace(RECIPE, columns=columns, rows=rows), LANES * length)
    assert lanes.length == length
    codes = np.zeros((length, LANES), np.int32)
    codes[:, 0] = np.arange(1, length + 1)
    # What lies ahead is not known to a decoder.
    return [
        tuple(
            int(c[0])
            for c in lanes.neighbours(np.where(np.arange(length)[:, None] < t, codes, -9), t)
        )
        for t in range(length)
    ]


def test_neighbours_without_rows() -> None:
    assert neighbours(0, 0, 4) == [(0, 0, 0, 0), (1, 0, 0, 0), (2, 0, 0, 0), (3, 0, 0, 0)]
    # A unit of 1: rows of one code are no rows.
    assert neighbours(1, 0, 3) == neighbours(1, 1, 3) == neighbours(0, 0, 3)


def test_neighbours_in_rows() -> None:
    top = [(0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2)]
    second = [(1, 1, 1, 2), (4, 2, 1, 3), (5, 3, 2, 3)]
    third = [(4, 4, 4, 5), (7, 5, 4, 6), (8, 6, 5, 6)]
    fourth = [(7, 7, 7, 8), (10, 8, 7, 9), (11, 9, 8, 9)]
    assert neighbours(3, 0, 12) == top + second + third + fourth


def test_neighbours_in_planes() -> None:
    top = [(0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2)]
    second = [(1, 1, 1, 2), (4, 2, 1, 3), (5, 3, 2, 3)]
    third = [(0, 0, 0, 0), (7, 7, 7, 7), (8, 8, 8, 8)]
    fourth = [(7, 7, 7, 8), (10, 8, 7, 9), (11, 9, 8, 9)]
    assert neighbours(3, 2, 12) == top + second + third + fourth


def test_neighbours_in_planes_of_one_column() -> None:
    assert neighbours(1, 3, 6) == [
        (0, 0, 0, 0),
        (1, 1, 1, 1),
        (2, 2, 2, 2),
        (0, 0, 0, 0),
        (4, 4, 4, 4),
        (5, 5, 5, 5),
    ]


def test_prediction_is_rounded_after_every_operation() -> None:
    recipe = replace(RECIPE, columns=2, weights=(64, 64, 64, -64))
    lanes = Lanes(recipe, LANES * 4)
    codes = np.zeros((4, LANES), np.int32)
    # In f32 2^24 + 1 is 2^24: as a code, and as the sum of U and UL.
    codes[:3, 0] = [1, 2**24, 5]
    codes[:3, 1] = [2**24 + 1, 1, 0]
    codes[:3, 2] = [-1, 3, -64]
    p = Walk(recipe, lanes).predict(codes, 3)
    assert p.dtype == np.float32
    # U + UL - UR + L with UR = U in the last column.
    assert p[:3].tolist() == [5.0, 2.0**24 - 1, -65.0]


def test_buckets() -> None:
    z = np.array([0, 0.49, 0.5, 0.99, 1, 2, 3, 7, 1016, 2046, 2047, 3070, 3071, 1e9, 1e38, np.inf])
    expected = [0, 0, 1, 1, 2, 3, 4, 6, 19, 21, 22, 22, 23, 23, 23, 23]
    assert bucket(z.astype(np.float32)).tolist() == expected


def test_context_of_the_model_code() -> None:
    walk = Walk(replace(RECIPE, method=Model.CODE), Lanes(RECIPE, 64))
    p = np.zeros(LANES, np.float32)
    p[:6] = [0.0, -0.0, 0.125, -0.125, 1.0, -1e9]
    # abs(p) x 2^(2 - s): 4 p, p / 2.
    assert walk.context(p, 0, 0)[:6].tolist() == [0, 24, 1, 25, 4, 47]
    assert walk.context(p, 0, 3)[:6].tolist() == [0, 24, 0, 24, 1, 47]


def test_contexts_of_running_means() -> None:
    lanes = Lanes(replace(RECIPE, columns=2), LANES * 4)
    symbols = np.full(LANES, 128)
    symbols[:3] = [128 + 8, 128 - 16, 0]
    p = np.zeros(LANES, np.float32)

    def contexts(model: Model) -> list[list[int]]:
        walk = Walk(replace(RECIPE, columns=2, method=model), lanes)
        found = []
        for t in range(4):
            found.append(walk.context(p, t, 0)[:4].tolist())
            walk.update(symbols if t == 0 else np.full(LANES, 128), t)
        return found

    # After activity 8 the mean is 1, bucket(8 x 1) = 6; then 0.875, bucket(7) = 6.
    assert contexts(Model.FLAT) == [[0, 0, 0, 0]] * 4
    assert contexts(Model.ALONG)[:2] == [[0, 0, 0, 0], [6, 8, 14, 0]]
    # Only column 0 has seen it.
    assert contexts(Model.ACROSS) == [[0] * 4, [0] * 4, [6, 8, 14, 0], [0] * 4]
    assert contexts(Model.BOTH)[:2] == [[0] * 4, [4, 6, 12, 0]]


def test_running_means_are_f32() -> None:
    walk = Walk(replace(RECIPE, method=Model.BOTH), Lanes(RECIPE, 64 * 100))
    h = np.float32(0)
    for t in range(100):
        a = np.float32(t * 37 % 128)
        walk.update(np.full(LANES, 128 - int(a)) if a < 127 else np.zeros(LANES, np.int64), t)
        h = np.float32(h + np.float32(np.float32(a - h) * np.float32(0.125)))
        assert walk.along[5] == walk.across[0, 9] == h
