"""The peers' quantiser: near, small, unbiased."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.study.groups import GROUP, Groups


@given(st.integers(1, 8), st.integers(1, 900), st.floats(-50, 50), st.integers(0, 99))
def test_no_value_moves_further_than_a_step(bits: int, items: int, shift: float, seed: int) -> None:
    x = torch.randn(items, generator=torch.Generator().manual_seed(seed)) + shift
    for chance in (None, seed):
        packed = Groups.of(x, bits=bits, seed=chance)
        back = packed.restore()
        step = packed.scale.float().repeat_interleave(GROUP)[:items]
        limit = step * (0.5 if chance is None else 1.0)
        # Minimum and scale are rounded outwards, so that values stay between them.
        assert bool(((x - back).abs() <= limit * 1.001 + 1e-5).all())
        assert back.shape == x.shape and back.dtype == x.dtype


@pytest.mark.parametrize(("bits", "ratio"), [(2, 15.06), (4, 7.76)])
def test_sizes_are_those_that_the_peers_reach(bits: int, ratio: float) -> None:
    x = torch.randn(64, GROUP)
    assert x.numel() * 4 / Groups.of(x, bits=bits, seed=0).nbytes == pytest.approx(ratio, abs=0.01)


def test_rounding_by_chance_has_no_bias() -> None:
    x = torch.rand(4, GROUP, generator=torch.Generator().manual_seed(1))
    mean = torch.stack([Groups.of(x, bits=2, seed=seed).restore() for seed in range(400)]).mean(0)
    # A third of a step is the worst deviation of one draw; 400 draws, 1024 values.
    assert float((mean - x).abs().max()) < 5 * (1 / 3) / 2 / 20
    nearest = Groups.of(x, bits=2, seed=None).restore()
    assert float((nearest - x).abs().max()) > 5 * (1 / 3) / 2 / 20


def test_a_constant_and_a_shape_come_back() -> None:
    x = torch.full((2, 3, 5), 1.5)
    assert torch.equal(Groups.of(x, bits=2, seed=3).restore(), x)
