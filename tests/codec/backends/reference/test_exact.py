"""The rule exact: codes sort as values do, and every pattern comes back."""

import numpy as np
import pytest

from elbowroom.codec.backends.reference.exact import codes_of_items, items_of_codes
from elbowroom.codec.recipe import Dtype
from tests.codec.backends.reference.examples import noise


@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("n", [0, 1, 1000])
def test_round_trip(dtype: Dtype, n: int) -> None:
    items = noise(dtype, n)
    codes = codes_of_items(dtype, items)
    assert codes.dtype == np.int32
    assert len(codes) == n * (2 if dtype.item_bytes == 8 else 1)
    back = items_of_codes(dtype, codes)
    assert back.dtype == items.dtype
    assert back.tobytes() == items.tobytes()


def test_every_half_comes_back() -> None:
    patterns = np.arange(2**16, dtype=np.uint16)
    for dtype, items in ((Dtype.F16, patterns.view(np.float16)), (Dtype.BF16, patterns)):
        assert items_of_codes(dtype, codes_of_items(dtype, items)).tobytes() == items.tobytes()


def test_known_codes() -> None:
    halves = np.array([0.0, -0.0, 1.0, -1.0], np.float16)
    assert codes_of_items(Dtype.F16, halves).tolist() == [0, -1, 0x3C00, -0x3C01]
    floats = np.array([0.0, -0.0, 1.0, -1.0], np.float32)
    assert codes_of_items(Dtype.F32, floats).tolist() == [0, -1, 0x3F800000, -0x3F800001]
    assert codes_of_items(Dtype.U32, np.array([2**32 - 1], np.uint32)).tolist() == [-1]
    assert codes_of_items(Dtype.U8, np.array([200], np.uint8)).tolist() == [200]
    words = np.array([1, -1, 2**32 * 7 + 5], np.int64)
    assert codes_of_items(Dtype.I64, words).tolist() == [0, -1, 7, 1, -1, 5]


def test_codes_sort_as_floats_do() -> None:
    values = np.sort(np.random.default_rng(0).normal(size=1000)).astype(np.float32)
    assert np.all(np.diff(codes_of_items(Dtype.F32, values)) >= 0)


def test_codes_that_no_item_has_are_cut() -> None:
    codes = np.array([2, 3, -1, 256], np.int32)
    assert items_of_codes(Dtype.BOOL, codes).view(np.uint8).tolist() == [0, 1, 1, 0]
    assert items_of_codes(Dtype.U8, codes).tolist() == [2, 3, 255, 0]
    assert items_of_codes(Dtype.I8, codes).tolist() == [2, 3, -1, 0]
