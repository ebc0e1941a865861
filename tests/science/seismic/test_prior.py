"""Priors: what they draw on, and what they leave alone."""

import pytest
import torch
from torch import Tensor

import elbowroom as er
from elbowroom.science.seismic import (
    Dias,
    Prior,
    Subspace,
    Tikhonov,
    Velocity,
    find_by_curvature,
    find_by_gradients,
)

from .scene import WATER, scene

SHAPE = (7, 9)


def noise(seed: int = 0) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_subspace(rank: int = 4) -> Subspace:
    drawn = torch.Generator().manual_seed(3)
    columns = torch.randn(SHAPE[0] * SHAPE[1], rank, generator=drawn, dtype=torch.float64)
    return Subspace(basis=torch.linalg.qr(columns)[0], energies=torch.ones(rank))


def priors() -> list[Prior]:
    reference = 2000 + 100 * noise(9)
    plain = [Tikhonov(weight=3.0, reference=reference, order=order) for order in (0, 1, 2)]
    return [*plain, Dias(weight=3.0, reference=reference, subspace=some_subspace())]


@pytest.mark.parametrize("prior", priors(), ids=["value", "slope", "bend", "dias"])
def test_they_are_parabolas_around_the_reference(prior: Prior) -> None:
    m, v, w = 2000 + 50 * noise(1), noise(2), noise(3)
    assert prior.value(prior.reference) == 0
    assert prior.value(m) > 0
    assert float((w * prior.product(v)).sum()) == pytest.approx(
        float((v * prior.product(w)).sum()), rel=1e-9
    )
    assert float((v * prior.product(v)).sum()) >= 0
    # A step in km/s is a thousand times one in m/s.
    ahead, behind = (prior.value(m + sign * 1000 * 1e-3 * v) for sign in (1, -1))
    assert float((prior.gradient(m) * v).sum()) == pytest.approx((ahead - behind) / 2e-3, rel=1e-6)


def test_tikhonov_leaves_what_is_even_alone() -> None:
    reference = torch.full(SHAPE, 2000.0).double()
    slope = torch.arange(SHAPE[1]).double().expand(SHAPE)
    size, even, bend = (Tikhonov(weight=1.0, reference=reference, order=n) for n in (0, 1, 2))
    assert size.value(reference + 1000) == pytest.approx(0.5)
    assert even.value(reference + 1000) == 0
    assert even.value(reference + 1000 * slope) == pytest.approx(0.5 * 8 / 9)
    # Second differences feel a slope at its ends only.
    assert bend.value(reference + 1000 * slope) == pytest.approx(0.5 * 2 / 9)


def test_dias_leaves_the_active_subspace_alone() -> None:
    subspace = some_subspace()
    reference = torch.full(SHAPE, 2000.0).double()
    prior = Dias(weight=5.0, reference=reference, subspace=subspace)
    inside = (subspace.basis @ torch.tensor([1.0, -2.0, 3.0, 0.5]).double()).view(SHAPE)
    assert prior.value(reference + 1000 * inside) == pytest.approx(0, abs=1e-14)
    assert float(prior.gradient(reference + 1000 * inside).abs().max()) < 1e-14
    outside = noise(4) - subspace.project(noise(4))
    plain = Tikhonov(weight=5.0, reference=reference, order=0)
    both = reference + 1000 * (inside + outside)
    assert prior.value(both) == pytest.approx(plain.value(reference + 1000 * outside))


def flat_center() -> Velocity:
    return Velocity(m_per_s=torch.full(SHAPE, 2000.0).double(), spacing_m=10.0)


def test_both_ways_find_the_directions_that_a_function_feels() -> None:
    """f(m) = 1/2 sum of s_k (w_k . m)^2 changes along its w_k only."""
    known = some_subspace(3).basis
    sizes = torch.tensor([4.0, 2.0, 1.0]).double()
    center = flat_center()

    def product(v: Tensor) -> Tensor:
        return (known @ (sizes * (known.T @ v.flatten()))).view(SHAPE)

    by_gradients = find_by_gradients(
        lambda m: product(m - center.m_per_s), center, share=1 - 1e-9, samples=8
    )
    by_curvature = find_by_curvature(product, center.m_per_s, directions=8, share=1 - 1e-9)
    for found in (by_gradients, by_curvature):
        assert found.rank == 3
        torch.testing.assert_close(found.basis.T @ found.basis, torch.eye(3).double())
        torch.testing.assert_close(found.project(known[:, 0]), known[:, 0])
    torch.testing.assert_close(by_curvature.energies[:3], sizes)


def test_a_smaller_share_is_a_smaller_subspace() -> None:
    here = scene()
    misfit = here.misfit(shots_at_once=2)
    found = [
        find_by_gradients(
            lambda m: misfit.gradient(m)[1], here.start, samples=6, share=share, water_rows=WATER
        )
        for share in (0.5, 0.999)
    ]
    assert 1 <= found[0].rank < found[1].rank <= 6
    assert bool((found[0].energies.diff() <= 0).all())
    water = found[1].basis.view(*here.start.m_per_s.shape, -1)[:WATER]
    assert float(water.abs().max()) < 1e-12


def test_what_is_no_prior_is_refused() -> None:
    reference, center = torch.ones(SHAPE), flat_center()
    with pytest.raises(er.InvalidArgument, match="weight"):
        Tikhonov(weight=-1.0, reference=reference)
    with pytest.raises(er.InvalidArgument, match="order"):
        Tikhonov(weight=1.0, reference=reference, order=3)
    with pytest.raises(er.InvalidArgument, match="samples"):
        find_by_gradients(lambda m: m, center, samples=1)
    with pytest.raises(er.InvalidArgument, match="directions"):
        find_by_curvature(lambda v: v, center.m_per_s, directions=1)
