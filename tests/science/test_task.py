"""Scores, schedules and records."""

import json

import pytest
import torch
from torch import nn

from elbowroom.errors import InvalidArgument
from elbowroom.science.task import Result, Schedule, Score


def test_a_score_beats_every_baseline_or_none() -> None:
    assert Score(name="IoU", value=0.3, baselines={"a": 0.2, "b": 0.1}).beats_baselines()
    assert not Score(name="IoU", value=0.2, baselines={"a": 0.2, "b": 0.1}).beats_baselines()
    lower = Score(name="nats", value=1.5, baselines={"a": 2.0}, higher_is_better=False)
    assert lower.beats_baselines()
    assert str(lower) == "nats 1.5000 (a 2.0000)"
    assert not Score(name="IoU", value=float("nan"), baselines={"a": 0.2}).beats_baselines()


def test_the_rate_climbs_then_falls_to_nothing() -> None:
    schedule = Schedule(steps=100, batch=1, learning_rate=0.5, climb=0.2)
    rates = [schedule.rate_at(step) for step in range(100)]
    assert rates[19] == max(rates) == 0.5
    assert rates[:20] == sorted(rates[:20]) and rates[0] > 0
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert 0 < rates[-1] < 1e-3
    assert Schedule(steps=1, batch=1, learning_rate=1.0).rate_at(0) == 1.0


@pytest.mark.parametrize(
    ("name", "value"), [("steps", 0), ("batch", -1), ("learning_rate", 0.0), ("score_every", 0)]
)
def test_a_schedule_must_make_sense(name: str, value: float) -> None:
    words = {"steps": 1, "batch": 1, "learning_rate": 1.0, name: value}
    with pytest.raises(InvalidArgument, match=f"{name} must be"):
        Schedule(**words)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_only_matrices_decay(optimizer: str) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    schedule = Schedule(steps=1, batch=1, learning_rate=0.1, weight_decay=0.5)
    made = Schedule(
        **{**schedule.__dict__, "optimizer": optimizer}  # type: ignore[arg-type]
    ).make_optimizer(network)
    decays = {id(p): group["weight_decay"] for group in made.param_groups for p in group["params"]}
    assert decays[id(network[0].weight)] == 0.5
    assert decays[id(network[0].bias)] == decays[id(network[1].weight)] == 0.0
    assert len(decays) == len(list(network.parameters()))


def test_a_record_is_plain() -> None:
    first, last = Score(name="x", value=0.1), Score(name="x", value=0.2, baselines={"y": 0.0})
    result = Result(
        task="t",
        seed=3,
        losses=(2.0, float("nan")),
        scores=((1, first), (2, last)),
        seconds=0.5,
        diverged_at=None,
        network=nn.Linear(1, 1),
    )
    assert result.score is last
    record = json.loads(json.dumps(result.record(), allow_nan=False))
    assert record["losses"] == [2.0, None]
    assert record["steps"] == 2
    assert record["score"]["value"] == 0.2
    assert record["scores"][0] == {"step": 1, **record["scores"][0]}
    assert "network" not in record
    assert torch.is_grad_enabled()
