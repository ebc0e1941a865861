"""Every pattern of the short float types, and a 4096th of all float32 ones, keeps its promise.

`./dev soak` does the whole of float32.
"""

import numpy as np
import pytest

from elbowroom.codec.bound import Bound
from elbowroom.codec.recipe import Dtype
from tests.soak.every_float import CASES, Case, broken, check, quantises, sample, spread_order


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_sample_of_float32(case: Case, isa: str) -> None:
    assert quantises(case, Dtype.F32)
    assert check(case, Dtype.F32, sample(4096)) is None


@pytest.mark.parametrize("dtype", [Dtype.F16, Dtype.BF16])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_of_the_short_types(case: Case, dtype: Dtype, isa: str) -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    assert check(case, dtype, patterns) is None
    # Neighbours that differ wildly fill other blocks than those that follow one another.
    assert check(case, dtype, np.random.default_rng(1).permutation(patterns)) is None


def test_bounds_of_every_size_on_the_short_types(isa: str) -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    for exponent in range(-30, 20, 3):
        for dtype in (Dtype.F16, Dtype.BF16):
            value = 1.3 * 2.0**exponent
            for bound in (Bound.absolute(value), Bound.absolute(value, keep_sign=True)):
                case = Case(name=repr(bound), bound=bound, exponent=exponent + 12)
                assert check(case, dtype, patterns) is None


def test_a_sample_of_float64(isa: str) -> None:
    """Doubles around every power of two, and noise."""
    rng = np.random.default_rng(1)
    powers = (np.arange(2048, dtype=np.uint64) << np.uint64(52))[:, None]
    edges = (powers + np.arange(-4, 4).astype(np.uint64)).reshape(-1)
    patterns = np.concatenate(
        [edges, edges ^ np.uint64(1 << 63), rng.integers(0, 2**64, 1 << 16, dtype=np.uint64)]
    )
    for case in CASES:
        assert check(case, Dtype.F64, patterns) is None


def test_broken_promises_are_found() -> None:
    """The check itself: one wrong pattern of each kind is seen."""
    one, zero, infinity, nan = 0x3F800000, 0, 0x7F800000, 0x7FC00001
    before = np.array([one, one, one, zero, infinity, nan, nan], np.uint32)
    after = np.array([0x3F802000, 0x3F810000, one | 1 << 31, 1 << 31, one, one, nan + 1], np.uint32)
    plain = Case(name="plain", bound=Bound.absolute(1e-3))
    assert broken(plain, Dtype.F32, before, after).tolist() == before[1:].tolist()
    signed = Case(name="signs", bound=Bound.absolute(10.0, keep_sign=True))
    wrong = broken(signed, Dtype.F32, before[:3], np.array([one + 5, 0, one | 1 << 31], np.uint32))
    assert wrong.tolist() == [one, one]
    # |1 - (-2^-60)| is 1 when rounded, and more than that.
    tiny = np.array([(127 - 60) << 23 | 1 << 31], np.uint32)
    edge = Case(name="edge", bound=Bound.absolute(1.0))
    assert broken(edge, Dtype.F32, before[:1], tiny).size == 1


def test_slabs_are_spread() -> None:
    order = list(spread_order())
    assert sorted(order) == list(range(256))
    assert sorted(order[:4]) == [0, 64, 128, 192]
