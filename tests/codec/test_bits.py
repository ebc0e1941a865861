"""Bits of tensors beside torch's own comparisons, at every instruction set."""

import math

import pytest
import torch

from elbowroom.codec.bits import (
    expand,
    fold,
    pack_either,
    pack_nonzero,
    pack_positive,
    pattern_of,
    unfold,
)

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SIZES = [0, 1, 7, 63, 64, 65, 1000, (1 << 17) + 5]
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 6e-8, -6e-8, 1.0, -1.0]


def values(count: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(count, generator=torch.Generator().manual_seed(count)).to(dtype)
    special = torch.tensor(SPECIAL).to(dtype)
    x[:: max(1, count // 50)] = special.repeat(count)[: len(x[:: max(1, count // 50)])]
    return x


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", SIZES)
def test_positive(dtype: torch.dtype, count: int, isa: str) -> None:
    x = values(count, dtype)
    bits = pack_positive(x)
    assert bits.numel() == -(-count // 8)
    assert torch.equal(bits, fold(x > 0))
    out = torch.empty_like(x)
    expand(bits, 0, pattern_of(torch.ones((), dtype=dtype)), out)
    assert torch.equal(out, (x > 0).to(dtype))


@pytest.mark.parametrize("count", [*SIZES, (1 << 18) - 1, 1 << 18, (1 << 19) + 11])
def test_nonzero(count: int) -> None:
    x = values(count, torch.float32)
    kept = x.clone()
    assert torch.equal(pack_nonzero(x), fold(x.abs() > 0))
    assert torch.equal(x.view(torch.int32), kept.view(torch.int32))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", SIZES)
def test_either(dtype: torch.dtype, count: int, isa: str) -> None:
    mask = torch.rand(count, generator=torch.Generator().manual_seed(3)) < 0.3
    low, high = (torch.tensor(v, dtype=dtype) for v in (-0.0, 1.25))
    x = torch.where(mask, high, low)
    first, second = pattern_of(low), pattern_of(high)
    bits = pack_either(x, first, second)
    assert bits is not None
    assert torch.equal(unfold(bits, count).bool(), mask)
    out = torch.full_like(x, 7)
    expand(bits, first, second, out)
    patterns = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    assert torch.equal(out.view(patterns), x.view(patterns))
    for place in {0, count // 2, count - 1} if count else set():
        y = x.clone()
        y[place] = 0.0  # equal to -0.0, and not the same
        assert pack_either(y, first, second) is None


def test_the_way_of_other_devices_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.where(values(1003, torch.float32) > 0, 3.5, -2.0)
    low, high = pattern_of(torch.tensor(-2.0)), pattern_of(torch.tensor(3.5))
    expected, signs = pack_either(x, low, high), pack_positive(x)
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    assert expected is not None
    bits = pack_either(x, low, high)
    assert bits is not None
    assert torch.equal(bits, expected)
    assert torch.equal(pack_positive(x), signs)
    assert pack_either(x + 1, low, high) is None
    out = torch.empty_like(x)
    expand(bits, low, high, out)
    assert torch.equal(out, x)
