"""Bounds: what they accept, what they say, and the check that tests and users rely on."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from elbowroom import Bound, InvalidArgument
from elbowroom.codec.bound import Mode


def f32(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        (Bound.absolute(1e-3), "Bound.absolute(0.001)"),
        (Bound.absolute(2, keep_sign=True), "Bound.absolute(2.0, keep_sign=True)"),
        (Bound.range_relative(1e-2), "Bound.range_relative(0.01)"),
        (Bound.pointwise_relative(0.1), "Bound.pointwise_relative(0.1)"),
        (Bound.lossless(), "Bound.lossless()"),
    ],
)
def test_repr_is_the_call_that_makes_it(bound: Bound, text: str) -> None:
    assert repr(bound) == text
    assert eval(text) == bound
    assert hash(eval(text)) == hash(bound)


def test_zero_means_lossless() -> None:
    for zero in (Bound.absolute(0), Bound.range_relative(0.0), Bound.pointwise_relative(-0.0)):
        assert zero == Bound.lossless()
    assert Bound.absolute(0, keep_sign=True) == Bound.lossless()


def test_numbers_of_other_types_are_taken() -> None:
    assert Bound.absolute(np.float32(0.5)).value == 0.5  # type: ignore[arg-type]
    assert Bound.absolute(np.int64(3)).value == 3.0  # type: ignore[arg-type]
    assert type(Bound.absolute(np.float64(0.5)).value) is float


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, -math.inf])
def test_a_bound_is_finite_and_positive(value: float) -> None:
    with pytest.raises(InvalidArgument, match=r"must be finite and positive .* got .*: pass"):
        Bound.absolute(value)


@pytest.mark.parametrize("value", ["1e-3", None, True, torch.tensor(1.0), 1j])
def test_a_bound_is_a_number(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"a bound must be a number, got .*: pass a float"):
        Bound.absolute(value)


def test_a_pointwise_bound_is_below_one() -> None:
    with pytest.raises(InvalidArgument, match=r"must be below 1, got 1\.0: pass the share"):
        Bound.pointwise_relative(1)


def test_a_bound_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Bound.absolute(1).value = 2.0  # type: ignore[misc]


def test_absolute_holds_up_to_equality() -> None:
    bound = Bound.absolute(0.5)
    assert bound.holds(f32(1, 2, 3), f32(1.5, 1.5, 3.25))
    assert not bound.holds(f32(1), f32(1.5000001))
    assert bound.largest_error(f32(1, 2), f32(1.5, 2.25)) == 0.5


def test_differences_are_compared_without_rounding() -> None:
    # 1 - (-2^-60) rounds to 1 in float64 and is more than 1.
    x, y = np.array([1.0]), np.array([-(2.0**-60)])
    assert not Bound.absolute(1.0).holds(x, y)
    assert Bound.absolute(1.0).holds(x, np.array([2.0**-60]))


def test_range_relative_looks_at_finite_values() -> None:
    x = f32(0, 10, math.inf, math.nan)
    bound = Bound.range_relative(0.1)
    assert bound.holds(x, f32(0, 9, math.inf, math.nan))
    assert not bound.holds(x, f32(0, 8.9, math.inf, math.nan))
    assert bound.largest_error(x, f32(0, 8, math.inf, math.nan)) == pytest.approx(0.2)
    wide = np.array([-1.7e308, 1.7e308])
    assert bound.resolve(-1.7e308, 1.7e308) == pytest.approx(3.4e307)
    assert bound.holds(wide, wide)


def test_pointwise_is_a_share_of_each_value() -> None:
    bound = Bound.pointwise_relative(0.1)
    assert bound.holds(f32(1, -100, 1e-30), f32(1.09, -91, 1.05e-30))
    assert not bound.holds(f32(1e-30), f32(1.2e-30))
    assert not bound.holds(f32(1e-3), f32(0))
    assert bound.largest_error(f32(1, -100), f32(1, -75)) == 0.25


@pytest.mark.parametrize(
    ("x", "y", "holds"),
    [
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (math.inf, 3e38, False),
        (0.0, 0.0, True),
        (0.0, -0.0, False),
        (-0.0, 0.0, False),
        (0.0, 1e-9, False),
        (1e-9, 0.0, True),
        (1.0, math.nan, False),
        (1.0, math.inf, False),
    ],
)
def test_special_values_must_survive(x: float, y: float, holds: bool) -> None:
    assert Bound.absolute(10).holds(f32(x), f32(y)) is holds


def test_keep_sign_forbids_crossing_and_reaching_zero() -> None:
    bound = Bound.absolute(1, keep_sign=True)
    assert bound.holds(f32(0.5, -0.5), f32(0.1, -0.1))
    assert not bound.holds(f32(0.5), f32(-0.1))
    assert not bound.holds(f32(0.5), f32(0))


def test_lossless_and_integers_are_compared_bit_by_bit() -> None:
    quiet = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert Bound.lossless().holds(quiet, quiet.clone())
    assert not Bound.lossless().holds(quiet[:1], quiet[1:])
    assert Bound.absolute(1).holds(quiet[:1], quiet[1:])
    big = np.array([2**62])
    assert not Bound.absolute(100).holds(big, big + 1)
    assert Bound.absolute(100).largest_error(big, big + 1) == 1.0
    assert Bound.absolute(100).largest_error(big, big) == 0.0


def test_largest_error_of_a_lost_value_is_infinite() -> None:
    for bound in (Bound.absolute(1), Bound.range_relative(0.1), Bound.pointwise_relative(0.1)):
        assert bound.largest_error(f32(1, 2), f32(1, math.nan)) == math.inf
        assert bound.largest_error(f32(), f32()) == 0.0


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_narrow_floats_and_gradients(kind: torch.dtype) -> None:
    x = torch.ones(3, dtype=kind, requires_grad=True)
    assert Bound.absolute(0.1).holds(x, x.detach() * 1.05)


def test_arrays_that_cannot_be_compared() -> None:
    with pytest.raises(InvalidArgument, match="of one kind were expected, got Tensor and ndarray"):
        Bound.lossless().holds(f32(1), np.ones(1, np.float32))
    with pytest.raises(InvalidArgument, match="one dtype and shape were expected"):
        Bound.lossless().holds(f32(1), f32(1, 2))
    with pytest.raises(InvalidArgument, match="one dtype and shape were expected"):
        Bound.lossless().holds(f32(1), f32(1).double())


def test_mode_numbers_are_those_of_the_format() -> None:
    assert [mode.value for mode in Mode] == [0, 1, 2, 3]


@pytest.mark.parametrize("arguments", [(1e-3,), ("absolute", 1e-3), (7, 1.0)])
def test_a_bound_without_a_mode_is_refused(arguments: Any) -> None:
    with pytest.raises(InvalidArgument, match="what it is relative to"):
        Bound(*arguments)


def test_a_number_beyond_floats_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="finite"):
        Bound.absolute(10**400)
