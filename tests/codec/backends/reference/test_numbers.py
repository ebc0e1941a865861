"""Widening, narrowing and `int`: rounding at every place where it could go wrong."""

import numpy as np
import pytest
import torch

from elbowroom.codec.backends.reference.numbers import narrow, nearest_int, widen, wrap
from elbowroom.codec.recipe import Dtype


@pytest.mark.parametrize("dtype", [Dtype.F16, Dtype.BF16])
def test_narrow_is_the_inverse_of_widen(dtype: Dtype) -> None:
    patterns = np.arange(2**16, dtype=np.uint16)
    items = patterns.view(np.float16) if dtype == Dtype.F16 else patterns
    wide = widen(dtype, items)
    number = ~np.isnan(wide)
    assert narrow(dtype, wide)[number].tobytes() == items[number].tobytes()


@pytest.mark.parametrize(
    ("value", "half"),
    [
        (65504.0, 0x7BFF),
        (65519.996, 0x7BFF),
        (65520.0, 0x7C00),
        (-1e30, 0xFC00),
        (2.0**-24, 0x0001),
        (2.0**-25, 0x0000),
        (-(2.0**-25), 0x8000),
        (1.0001 * 2.0**-25, 0x0001),
        (1.5 * 2.0**-24, 0x0002),
        (1.0 + 2.0**-11, 0x3C00),
        (1.0 + 3 * 2.0**-11, 0x3C02),
        (2.0**-14 - 2.0**-25, 0x0400),
        (np.nan, 0x7E00),
    ],
)
def test_halves_round_to_even(value: float, half: int) -> None:
    assert narrow(Dtype.F16, np.array([value], np.float32)).view(np.uint16).tolist() == [half]


def test_bf16_rounds_as_torch_does() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    bits[::3] = bits[::3] & 0xFFFF0000 | 0x8000  # ties
    values = bits.view(np.float32)
    values = values[~np.isnan(values)]
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
    assert narrow(Dtype.BF16, values).tobytes() == expected.tobytes()


def test_halves_round_as_torch_does() -> None:
    exponents = np.random.default_rng(0).uniform(-27, 17, 100_000)
    values = (2.0**exponents).astype(np.float32)
    expected = torch.from_numpy(values).to(torch.float16).numpy()
    assert narrow(Dtype.F16, values).tobytes() == expected.tobytes()


def test_nearest_int() -> None:
    values = [0.5, 1.5, 2.5, -0.5, -1.5, 2.0**31 - 128, 2.0**31, -(2.0**31), -(2.0**32), np.inf]
    expected = [0, 2, 2, 0, -2, 2**31 - 128, -(2**31), -(2**31), -(2**31), -(2**31)]
    assert nearest_int(np.array(values, np.float32)).tolist() == expected
    assert nearest_int(np.array([np.nan, -np.inf], np.float32)).tolist() == [-(2**31)] * 2


def test_wrap() -> None:
    assert wrap(np.array([2**31, -(2**31) - 1, 2**32 + 5])).tolist() == [-(2**31), 2**31 - 1, 5]
