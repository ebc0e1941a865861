"""Extreme rain: thresholds from training days only, persistence, and that it learns."""

import math
from dataclasses import replace

import pytest
import torch

from elbowroom.errors import InvalidArgument
from elbowroom.science.climate.data import Days
from elbowroom.science.climate.extremes import ExtremeRain, split_days
from elbowroom.science.task import Schedule
from elbowroom.science.training import train

TINY = ExtremeRain(
    widths=(8, 12),
    crop=(48, 64),
    schedule=Schedule(steps=25, batch=2, learning_rate=1e-2),
)


def make_days(count: int = 10, seed: int = 0) -> Days:
    generator = torch.Generator().manual_seed(seed)
    return Days(
        surface_k=280 + 10 * torch.randn(count, 8, 12, generator=generator),
        rain_mm_per_day=10 * torch.rand(count, 8, 12, generator=generator) ** 3,
        latitude_deg=torch.linspace(-90, 90, 8),
        source="full",
    )


def test_held_out_days_touch_neither_threshold_nor_training_maps() -> None:
    days = make_days()
    rain, surface = days.rain_mm_per_day.clone(), days.surface_k.clone()
    rain[7:] *= 50
    surface[7:] += 100
    changed = replace(days, rain_mm_per_day=rain, surface_k=surface)
    words = {"held_out_days": 3, "quantile": 0.9}
    train_maps, held_out, _ = split_days(days, **words)  # type: ignore[arg-type]
    again, moved, _ = split_days(changed, **words)  # type: ignore[arg-type]
    assert torch.equal(train_maps.maps, again.maps)
    assert torch.equal(train_maps.labels, again.labels)
    assert not torch.equal(held_out.maps, moved.maps)
    # The wetter days count as more extreme, by the same threshold.
    assert moved.labels.float().mean() > 2 * held_out.labels.float().mean()
    share = (days.rain_mm_per_day[:7] > torch.quantile(days.rain_mm_per_day[:7], 0.9)).float()
    assert torch.equal(train_maps.labels.float(), share[2:])


def test_channels_are_today_and_the_days_before() -> None:
    days = make_days()
    maps, held_out, _ = split_days(days, held_out_days=3, quantile=0.9)
    assert (len(maps), len(held_out)) == (5, 3)
    today = 7
    x = held_out.maps[0]
    assert torch.equal(x[0], days.surface_k[today])
    assert torch.equal(x[1], days.surface_k[today - 1])
    assert torch.equal(x[2], days.rain_mm_per_day[today - 1].log1p())
    assert torch.equal(x[3], days.rain_mm_per_day[today - 2].log1p())
    assert float(x[4, 0, 0]) == -1 and float(x[4, -1, 0]) == 1


def test_persistence_is_the_overlap_of_neighbouring_days() -> None:
    days = make_days()
    steady = replace(days, rain_mm_per_day=days.rain_mm_per_day[:1].expand(10, -1, -1))
    assert split_days(steady, held_out_days=3, quantile=0.9)[2] == 1.0
    chance = split_days(make_days(40), held_out_days=20, quantile=0.9)[2]
    # Two independent tenths overlap by 0.01 / 0.19.
    assert chance == pytest.approx(0.053, abs=0.03)


@pytest.mark.parametrize("held_out_days", [0, 8, 10, -1])
def test_days_must_be_left_for_both_parts(held_out_days: int) -> None:
    with pytest.raises(InvalidArgument, match="of 10 days at most 7 can be held out"):
        split_days(make_days(), held_out_days=held_out_days, quantile=0.9)


@pytest.mark.parametrize("network", ["unet", "deeplab"])
def test_the_shipped_days_are_enough_to_learn(network: str) -> None:
    widths = TINY.widths if network == "unet" else (6, 8, 12)
    recipe = replace(TINY, network=network, widths=widths, held_out_days=2)  # type: ignore[arg-type]
    result = train(recipe)
    assert sum(result.losses[-5:]) < 0.85 * sum(result.losses[:5])
    assert 0.2 < result.score.baselines["persistence"] < 0.3
    assert math.isfinite(result.score.value) and 0 <= result.score.value <= 1


def test_a_seed_decides_everything() -> None:
    short = replace(TINY, held_out_days=1, schedule=replace(TINY.schedule, steps=2))
    assert train(short, seed=1).losses == train(short, seed=1).losses
    assert train(short, seed=1).losses != train(short, seed=2).losses


def test_a_deeplab_has_three_widths() -> None:
    task = TINY.make_task()
    with pytest.raises(InvalidArgument, match="three widths"):
        replace(TINY, network="deeplab").make_network(task)
