"""Every parameter's share of the error, and bounds that keep to it."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations import room as room_module
from elbowroom.keep.activations.journey import Mode, Onward
from elbowroom.keep.activations.noise import Noise
from elbowroom.keep.activations.reach import Variances
from elbowroom.keep.activations.rules import Decision, Evidence, Rule, decide
from elbowroom.keep.activations.sensitivity import Effect

Look = tuple[Rule, Evidence, float, float]


def look(monkeypatch: pytest.MonkeyPatch, model: Any, passes: int = 6) -> Look:
    """What the last look at the gradients of a small training has shown."""
    seen: list[Look] = []

    def spy(*args: Any) -> list[Decision]:
        seen.append(args[:4])
        return decide(*args)

    monkeypatch.setattr(room_module, "decide", spy)
    room = er.Activations(model, refresh=1, meter=0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(passes):
        x = torch.randn(64, 32, generator=generator)
        with room:
            loss = functional.cross_entropy(model(x), x[:, :8].argmax(1))
        model.zero_grad()
        loss.backward()
    return seen[-1]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(32, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 64), nn.Tanh()),
        nn.Linear(64, 8),
    )


def shares_of(found: Look, decisions: list[Decision]) -> dict[int, float]:
    """Of each parameter, the error over its own variance."""
    evidence = found[1]
    total = torch.zeros(len(evidence.variances.leaves), dtype=torch.float64)
    for decision in decisions:
        assert decision.site.sample is not None
        dense = float((decision.site.sample != 0).float().mean())
        each = evidence.variances.costs(evidence.observer.effects[decision.site]).each
        total += torch.from_numpy(each) * dense / 3 * decision.bound**2
    return dict(zip(evidence.variances.leaves, total.tolist(), strict=True))


def test_no_parameter_gets_more_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    found = look(monkeypatch, model)
    usual = shares_of(found, decide(*found))
    assert 0 < max(usual.values()) <= found[2] * (1 + 1e-6)
    leaf = id(model[5].weight)
    limit = usual[leaf] / 50
    before, after = decide(*found), decide(*found, {leaf: limit})
    assert 0.3 * limit < shares_of(found, after)[leaf] <= limit * (1 + 1e-6)
    # The first layers have nothing to do with it, and keep their bounds.
    ratios = [b.bound / a.bound for a, b in zip(before, after, strict=True)]
    assert min(ratios) < 0.3
    assert max(ratios) >= 0.9


def test_a_limit_of_nothing_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    found = look(monkeypatch, model)
    leaf = id(model[5].weight)
    decisions = decide(*found, {leaf: 0.0})
    evidence = found[1]
    reaching = {
        decision.site
        for decision in decisions
        if evidence.variances.costs(evidence.observer.effects[decision.site]).touched[
            evidence.variances.leaves.index(leaf)
        ]
        > 0
    }
    assert reaching
    assert all((d.bound == 0) == (d.site in reaching) for d in decisions)
    assert any(d.bound > 0 for d in decisions)


def test_shares_stay_within_the_tolerance_where_the_mean_layer_has_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A layer with a small gradient counts in the mean and hardly in the sum."""
    model = network()
    with torch.no_grad():
        model.get_parameter("5.weight").mul_(1e-3)
    rule, evidence, _, trust = look(monkeypatch, model)
    tolerance = 1e-4
    decisions = decide(rule, evidence, tolerance, trust)
    mean = 0.0
    for decision in decisions:
        assert decision.site.sample is not None
        dense = float((decision.site.sample != 0).float().mean())
        cost = evidence.variances.costs(evidence.observer.effects[decision.site])
        mean += cost.mean * dense / 3 * decision.bound**2
    assert sum(d.share for d in decisions) <= tolerance * (1 + 1e-6)
    assert 0 < mean <= tolerance * (1 + 1e-6)


def test_what_has_no_bound_leaves_nothing_undefined() -> None:
    """An effect without a bound on parameters of which nothing is known, or of nothing at all."""
    seen, unseen = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(3, 2))
    noise = Noise()
    for step in range(1, 6):
        noise.observe(seen, torch.randn(3, 2, generator=torch.Generator().manual_seed(step)), step)
    no_end = float("inf")
    journeys = {
        1: {Mode.WHITE: Onward({id(seen): 1.0, id(unseen): no_end}, {})},
        2: {Mode.WHITE: Onward({}, {(1, Mode.WHITE): no_end})},
    }
    variances = Variances(journeys, [seen, unseen], noise)
    local = variances.costs(Effect({id(unseen): no_end}, {(1, Mode.WHITE): 0.0}))
    assert (local.overall, local.mean, local.of_part) == (0, 0, 0)
    assert local.each.tolist() == [0, 0]
    far = variances.costs(Effect({}, {(2, Mode.WHITE): 1.0}))
    assert (far.overall, far.mean) == (no_end, no_end)
    assert far.each.tolist() == [no_end, 0]
