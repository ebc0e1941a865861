"""Lanes, neighbours, prediction and contexts, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from elbowroom.codec.backends.reference.model import Lanes, Walk, bucket, grow
from elbowroom.codec.recipe import Codec, Dtype, Model, Recipe

RECIPE = Recipe(codec=Codec.DENSE, dtype=Dtype.I32)
LANES = 64


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
    lanes = Lanes(replace(RECIPE, columns=columns, rows=rows), n, 64)
    assert (lanes.unit, lanes.length) == (unit, length)


def test_words_of_8_bytes_have_no_rows() -> None:
    assert Lanes(Recipe(codec=Codec.DENSE, dtype=Dtype.I64, columns=10), 6400, 64).unit == 1


def test_lanes_are_runs_of_codes() -> None:
    lanes = Lanes(RECIPE, 130, 64)
    cut = lanes.cut(np.arange(1, 131, dtype=np.int32))
    assert cut.shape == (3, LANES)
    assert cut[:, 0].tolist() == [1, 2, 3]
    assert cut[:, 43].tolist() == [130, 0, 0]
    assert cut[:, 63].tolist() == [0, 0, 0]


def neighbours(columns: int, rows: int, length: int) -> list[tuple[int, ...]]:
    """Left, above, above left, above right of codes 1, 2, 3 ... in lane 0."""
    lanes = Lanes(replace(RECIPE, columns=columns, rows=rows), LANES * length, LANES)
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
    lanes = Lanes(recipe, LANES * 4, LANES)
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
    z = np.array([1, 1.49, 1.5, 1.99, 2, 3, 4, 8, 1023, 1024, 2047, 2048, 3071, 3072, 1e9, np.inf])
    expected = [0, 0, 1, 1, 2, 3, 4, 6, 19, 20, 21, 22, 22, 23, 47, 47]
    assert bucket(z.astype(np.float32), 47).tolist() == expected
    assert bucket(z.astype(np.float32), 5).tolist() == [min(b, 5) for b in expected]


def test_context_of_the_model_code() -> None:
    p = np.zeros(LANES, np.float32)
    p[:6] = [0.0, -0.0, 0.125, -0.125, 1.0, -1e9]
    # abs(p) x 2^(2 - s): 4 p, p / 2.
    for shift, expected in ((0, [0, 24, 1, 25, 4, 47]), (3, [0, 24, 0, 24, 1, 47])):
        recipe = replace(RECIPE, method=Model.CODE, shift=shift)
        walk = Walk(recipe, Lanes(recipe, 64, LANES))
        assert walk.context(p, 0)[:6].tolist() == expected


def contexts(model: Model, gain: int = 0) -> list[list[int]]:
    """Contexts of lanes 0 to 3 at times 0 to 3, in rows of two, after activities at time 0."""
    recipe = replace(RECIPE, columns=2, method=model, gain=gain)
    walk = Walk(recipe, Lanes(recipe, LANES * 4, LANES))
    activity = np.zeros(LANES, np.int64)
    activity[:3] = [8, 16, 16384]
    found = []
    for t in range(4):
        found.append(walk.context(np.zeros(LANES, np.float32), t)[:4].tolist())
        walk.update(activity if t == 0 else np.zeros_like(activity), t)
    return found


def test_contexts_of_running_means() -> None:
    # After activities 8, 16 and 16384 the means are 1 + 1, 2 and 2048; eight times as far from 1
    # are 9, 17 and 16385, in buckets 6, 8 and 28.
    assert contexts(Model.FLAT) == [[0] * 4] * 4
    assert contexts(Model.ALONG)[:2] == [[0] * 4, [6, 8, 28, 0]]
    # Only column 0 has seen it.
    assert contexts(Model.ACROSS) == [[0] * 4, [0] * 4, [6, 8, 28, 0], [0] * 4]
    assert contexts(Model.BOTH)[:2] == [[0] * 4, [4, 6, 26, 0]]


def test_contexts_of_the_grid() -> None:
    # At time 1 only the lane's mean is there, 2, 3 and 2049: buckets 2, 3 and 5, the last.
    # At time 2 it has sunk by an eighth, to buckets 1, 2 and 5, and the column's is unchanged.
    assert contexts(Model.GRID)[:3] == [[0] * 4, [16, 24, 40, 0], [8 + 2, 16 + 3, 40 + 7, 0]]
    # Four times as far from 1: 5, 9 and 8193, then 4.5 and 8.
    assert contexts(Model.GRID, 2)[1:3] == [[32, 40, 40, 0], [32 + 4, 40 + 6, 40 + 7, 0]]
    assert contexts(Model.GRID, -20)[1] == [0, 0, 0, 0]


@pytest.mark.parametrize("gain", [-20, -1, 0, 1, 20])
def test_no_mean_falls_below_the_first_bucket(gain: int) -> None:
    z = np.float32(1) + np.arange(100, dtype=np.float32) * np.float32(2.0**-23)
    factor = np.float32(2.0**gain)
    assert np.all(grow(z, factor) >= 1)
    assert np.all(bucket(grow(z, factor), 7) >= 0)


def test_running_means_are_f32() -> None:
    walk = Walk(replace(RECIPE, method=Model.BOTH), Lanes(RECIPE, 64 * 100, LANES))
    h = np.float32(1)
    for t in range(100):
        a = np.float32(1 + t * 3701 % 16385)
        walk.update(np.full(LANES, t * 3701 % 16385), t)
        h = np.float32(h + np.float32(np.float32(a - h) * np.float32(0.125)))
        assert walk.along[5] == walk.across[0, 9] == h
