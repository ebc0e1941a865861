"""Places of pooling indices beside torch's own pooling."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from elbowroom.codec.places import Windows


def check(shape: tuple[int, int, int, int], windows: Windows, *, ceil: bool) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    _, index = functional.max_pool2d(
        x,
        windows.kernel,
        windows.stride,
        windows.padding,
        windows.dilation,
        ceil_mode=ceil,
        return_indices=True,
    )
    places = windows.pack(index)
    assert places is not None
    count = windows.kernel[0] * windows.kernel[1]
    bits = next(b for b in (1, 2, 4, 8) if count <= 1 << b)
    planes, plane = index.shape[0] * index.shape[1], index.shape[2] * index.shape[3]
    assert places.numel() == planes * -(-plane * bits // 8)
    assert torch.equal(windows.expand(places, tuple(index.shape)), index)


@settings(max_examples=60, deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pad=st.integers(0, 2),
    ceil=st.booleans(),
)
def test_every_geometry(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    pad: int,
    ceil: bool,
) -> None:
    padding = (min(pad, kernel[0] // 2), min(pad, kernel[1] // 2))
    check((2, 3, 17, 14), Windows(14, kernel, stride, padding, dilation), ceil=ceil)


def test_long_rows_and_large_windows() -> None:
    check((1, 2, 5, 1500), Windows(1500, (3, 2), (1, 1), (1, 1), (1, 1)), ceil=False)
    check((1, 1, 40, 40), Windows(40, (16, 16), (4, 4), (8, 8), (1, 1)), ceil=False)
    assert Windows(40, (17, 16), (4, 4), (8, 8), (1, 1)).pack(torch.zeros(1, 1, 4, 4)) is None


@pytest.mark.parametrize("wrong", [-1, 2**62, -(2**63), 25])
def test_an_index_outside_its_window_is_noticed(wrong: int) -> None:
    windows = Windows(8, (2, 2), (2, 2), (0, 0), (1, 1))
    x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(2))
    index = functional.max_pool2d(x, 2, return_indices=True)[1]
    index[0, 3, 1, 1] = wrong
    assert windows.pack(index) is None
    index[0, 3, 1, 1] = 26
    assert windows.pack(index) is not None
