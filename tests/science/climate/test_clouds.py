"""Clouds: thresholds and scales leave the last month out, and it learns."""

from dataclasses import replace

import pytest
import torch

from elbowroom.science.climate import clouds
from elbowroom.science.climate.clouds import Clouds, stack_months
from elbowroom.science.climate.data import Months, load_months
from elbowroom.science.task import Schedule
from elbowroom.science.training import train


def make_months(seed: int = 0) -> Months:
    generator = torch.Generator().manual_seed(seed)
    temperature = 250 + 20 * torch.randn(3, 5, 16, 24, generator=generator)
    # Cold cells are cloudy, so that there is something to learn.
    cloud = torch.sigmoid((250 - temperature) / 10)
    return Months(
        temperature_k=temperature,
        cloud=cloud,
        latitude_deg=torch.linspace(-90, 90, 16),
        source="full",
    )


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Clouds:
    monkeypatch.setattr(clouds, "load_months", lambda folder, which: make_months())
    return Clouds(
        widths=(12, 16),
        crop=(16, 16),
        first_level=2,
        dropout=0.0,
        schedule=Schedule(steps=40, batch=2, learning_rate=1e-2),
    )


def test_the_last_month_touches_neither_threshold_nor_scale() -> None:
    months = make_months()
    temperature, cloud = months.temperature_k.clone(), months.cloud.clone()
    temperature[-1] += 50
    cloud[-1] *= 3
    changed = replace(months, temperature_k=temperature, cloud=cloud)
    inputs, cloudy = stack_months(months, first_level=2, quantile=0.9)
    again, more = stack_months(changed, first_level=2, quantile=0.9)
    assert torch.equal(inputs[:-1], again[:-1]) and torch.equal(cloudy[:-1], more[:-1])
    assert more[-1].mean() > 2 * cloudy[-1].mean()
    assert inputs.shape == (3, 11, 16, 24) and cloudy.shape == (3, 3, 16, 24)
    # Every level has its own threshold.
    assert cloudy[:-1].mean(dim=(0, 2, 3)).tolist() == pytest.approx([0.1] * 3, abs=0.01)


def test_clouds_are_learnt(recipe: Clouds) -> None:
    result = train(recipe)
    assert result.losses[-1] < 0.6 * result.losses[0]
    assert result.score.value > 2 * result.score.baselines["month before"]
    assert train(recipe).losses == result.losses


def test_the_shipped_months_have_many_channels() -> None:
    task = Clouds().make_task()
    assert (task.features, task.outputs) == (61, 22)
    x, y = task.draw(1, torch.Generator().manual_seed(0))
    assert x.shape == (1, 61, 96, 144) and y.shape == (1, 22, 96, 144)
    assert abs(float(x[:, :30].mean())) < 0.7 and float(x[:, :30].std()) < 2
    assert 0.02 < float(y.mean()) < 0.3
    # Rounded cloud still has thresholds that about a tenth of the cells exceed.
    _, cloudy = stack_months(load_months(), first_level=8, quantile=0.9)
    assert float(cloudy[:-1].mean()) == pytest.approx(0.1, abs=0.03)
