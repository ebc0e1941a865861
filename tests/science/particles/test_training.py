"""Signal against background: scales from training events, baselines, and that it learns."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from elbowroom.errors import InvalidArgument
from elbowroom.science.particles import training
from elbowroom.science.particles.data import Labelled
from elbowroom.science.particles.training import Events, JetImages, tell_apart
from elbowroom.science.task import Schedule
from elbowroom.science.training import train

from .event_files import make_jets, write_higgs, write_top_tagging


def test_b_jets_are_told_from_what_ships() -> None:
    recipe = Events(width=32, layers=2, schedule=Schedule(steps=120, batch=64, learning_rate=5e-3))
    result = train(recipe)
    assert sum(result.losses[-20:]) < 0.9 * sum(result.losses[:20])
    assert 0.8 < result.score.baselines["best column"] < result.score.value < 0.95
    short = replace(recipe, schedule=replace(recipe.schedule, steps=3))
    assert train(short, seed=1).losses == train(short, seed=1).losses
    assert train(short, seed=1).losses != train(short, seed=2).losses


def test_higgs_from_a_file(tmp_path: Path) -> None:
    write_higgs(tmp_path / "HIGGS.csv.gz", 400)
    recipe = Events(
        data="csv",
        csv=tmp_path / "HIGGS.csv.gz",
        rows=300,
        held_out_share=0.2,
        width=16,
        layers=1,
        schedule=Schedule(steps=60, batch=64, learning_rate=1e-2),
    )
    score = train(recipe).score
    assert score.value > 0.75 and score.baselines["best column"] > 0.75
    with pytest.raises(InvalidArgument, match="must be given as csv"):
        replace(recipe, csv=None).make_task()


def test_tops_from_constituents(tmp_path: Path) -> None:
    write_top_tagging(tmp_path / "train.h5", *make_jets(60))
    write_top_tagging(tmp_path / "test.h5", *make_jets(40, seed=1))
    recipe = JetImages(
        top_tagging=tmp_path,
        pixels=16,
        widths=(6, 8),
        schedule=Schedule(steps=30, batch=16, learning_rate=1e-2),
    )
    result = train(recipe)
    assert sum(result.losses[-5:]) < 0.8 * sum(result.losses[:5])
    assert result.score.value > 0.8
    assert set(result.score.baselines) == {"lit pixels"}


class Reading(nn.Module):
    """Says the first column, its opposite or nothing."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0] * self.factor


@pytest.mark.parametrize(("factor", "auc"), [(1.0, 1.0), (-1.0, 0.0), (0.0, 0.5)])
def test_perfect_and_blind_networks(factor: float, auc: float) -> None:
    labels = (torch.arange(40) % 4 == 0).float()
    rows = Labelled(inputs=labels[:, None] + 0.1, labels=labels)
    task = tell_apart(rows, rows, name="t", baselines={}, mirror=False)
    assert task.score(Reading(factor)).value == auc


def test_scales_come_from_training_rows_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = Labelled(
        inputs=100 + 5 * torch.randn(200, 3, generator=generator), labels=torch.ones(200)
    )
    rows.inputs[0, 1] = float("nan")
    other = replace(rows, inputs=rows.inputs * 50)
    brought, held_out = training._standardise(rows, other)
    assert torch.equal(brought.inputs, training._standardise(rows, rows)[0].inputs)
    assert brought.inputs.mean().abs() < 1e-4 and brought.inputs[0, 1] == 0
    torch.testing.assert_close(brought.inputs.std(), torch.tensor(1.0), rtol=0.02, atol=0)
    assert float(held_out.inputs.max()) == 10  # far off, and held back


def test_brightness_is_dimmed_by_training_images_and_dark_stays_dark() -> None:
    images = Labelled(inputs=torch.zeros(4, 1, 3, 3), labels=torch.ones(4))
    images.inputs[:, 0, 1, 1] = 8.0
    bright = replace(images, inputs=images.inputs * 100)
    dimmed, held_out = training._scale(images, bright)
    assert torch.equal(dimmed.inputs > 0, images.inputs > 0)
    assert float(dimmed.inputs.max()) == pytest.approx(0.6931, abs=1e-3)
    assert float(held_out.inputs.max()) == pytest.approx(4.6151, abs=1e-3)


def test_half_of_the_images_are_mirrored() -> None:
    images = torch.zeros(1, 1, 4, 4)
    images[0, 0, 0, 2] = 1
    task = tell_apart(
        Labelled(inputs=images, labels=torch.ones(1)),
        Labelled(inputs=images, labels=torch.ones(1)),
        name="t",
        baselines={},
        mirror=True,
    )
    drawn, _ = task.draw(100, torch.Generator().manual_seed(0))
    assert drawn[:, 0, 0, 2].sum() + drawn[:, 0, 3, 2].sum() == 100
    assert 30 < float(drawn[:, 0, 0, 2].sum()) < 70


def test_images_without_any_light_are_refused() -> None:
    dark = Labelled(inputs=torch.zeros(4, 1, 3, 3), labels=torch.tensor([0.0, 1.0, 0.0, 1.0]))
    with pytest.raises(InvalidArgument, match="all images for training are empty"):
        training._scale(dark, dark)
