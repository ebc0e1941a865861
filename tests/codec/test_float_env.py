"""The floating-point environment: whatever the host has set, results are the same."""

import ctypes
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from elbowroom import BackendUnavailable, Blob, Bound, InvalidArgument, decode, encode
from elbowroom.codec import blob as blob_module
from elbowroom.codec import float_env
from elbowroom.codec.bound import Array, Mode
from elbowroom.codec.quantise import settle
from tests.codec.arrays import same_bits

if sys.platform != "linux" or platform.machine() != "x86_64":
    pytest.skip("the numbers of rounding modes are those of x86-64", allow_module_level=True)

LIBRARY = ctypes.CDLL(None)
ROUNDING = {"down": 0x400, "up": 0x800, "towards zero": 0xC00}
BOUNDS = [
    *(Bound.absolute(value) for value in (5e-324, 1e-310, 2.0**-99, 1e-7, 1e-3)),
    Bound.absolute(1e-38, keep_sign=True),
    *(Bound.range_relative(value) for value in (1e-3, 0.1)),
    Bound.pointwise_relative(1e-2),
]


@contextmanager
def environment(name: str) -> Iterator[None]:
    """Change the environment of this thread; what was calculated before is forgotten."""
    for cached in (settle, blob_module._read_bound, blob_module._read_recipe):
        cached.cache_clear()
    try:
        if name == "flush denormals":
            assert torch.set_flush_denormal(True)
        else:
            assert LIBRARY.fesetround(ROUNDING[name]) == 0
        yield
        assert not float_env.is_default(), "the environment of the caller was not put back"
    finally:
        torch.set_flush_denormal(False)
        LIBRARY.fesetround(0)
        assert float_env.is_default()


@pytest.fixture(params=["flush denormals", *ROUNDING])
def disturbed(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return lambda: environment(request.param)


def sample_arrays() -> list[Array]:
    rng = np.random.default_rng(3)
    numbers = rng.standard_normal(200)
    tiny32 = (numbers * 1e-38).astype(np.float32)
    tiny32[::7] = 1e-42
    tiny64 = numbers * 1e-308
    tiny64[::7] = 5e-324
    return [
        tiny32,
        tiny64,
        numbers * 1e-310,
        numbers.astype(np.float32),
        numbers + 1e9,
        (numbers * 1e-5).astype(np.float16),
        torch.from_numpy(tiny32).bfloat16(),
    ]


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("codec", ["block", "dense"])
def test_bytes_and_values_are_the_same(
    disturbed: Callable[[], Any], codec: Any, backend: Any
) -> None:
    for x in sample_arrays():
        for bound in BOUNDS:
            data = encode(x, bound, codec=codec, backend=backend).tobytes()
            y = decode(data, backend=backend)
            with disturbed():
                again = encode(x, bound, codec=codec, backend=backend)
            with disturbed():
                read = Blob.frombytes(data)
                back = decode(read, backend=backend)
                recipe, holds, error = (
                    *(read.recipe, bound.holds(x, back), bound.largest_error(x, back)),
                )
            assert again.tobytes() == data, (x.dtype, bound)
            assert same_bits(back, y)
            assert holds
            assert recipe == read.recipe
            assert error == bound.largest_error(x, y)


def test_bounds_keep_their_value(disturbed: Callable[[], Any]) -> None:
    number: Any = np.float32(1e-45)
    with disturbed():
        smallest = Bound.absolute(5e-324)
        single = Bound.absolute(number)
        resolved = Bound.range_relative(0.1).resolve(0.0, 1.0)
        with pytest.raises(InvalidArgument, match="finite and positive"):
            Bound.absolute(-5e-324)
    assert smallest.mode == Mode.ABSOLUTE
    assert smallest.value == 5e-324
    assert single.value == float(np.float32(1e-45))
    assert resolved == Bound.range_relative(0.1).resolve(0.0, 1.0)


def test_denormals_that_were_lost_are_noticed(disturbed: Callable[[], Any]) -> None:
    for x in (torch.full((9,), 1e-42), torch.full((9,), 1e-39, dtype=torch.bfloat16)):
        with disturbed():
            holds = Bound.pointwise_relative(0.1).holds(x, torch.zeros_like(x))
            error = Bound.absolute(1).largest_error(x, torch.zeros_like(x))
        assert not holds
        assert error == float(x[0].double())


def test_the_environment_comes_back_after_an_error(disturbed: Callable[[], Any]) -> None:
    with disturbed(), pytest.raises(InvalidArgument):
        encode(torch.ones(3), 1e-3)  # type: ignore[arg-type]


def test_a_system_without_the_functions_refuses(
    disturbed: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(float_env, "_library", lambda: None)
    bound = Bound.absolute(1e-3)
    with disturbed(), pytest.raises(BackendUnavailable, match=r"set_flush_denormal\(False\)"):
        encode(torch.ones(3), bound)


def test_the_default_environment_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_env, "_library", lambda: pytest.fail("touched"))
    assert torch.equal(decode(encode(torch.ones(3), Bound.absolute(1e-3))), torch.ones(3))
