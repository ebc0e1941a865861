"""Labelled weather: from files in the formats of ClimateNet and DeepCAM to a trained network."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from elbowroom.errors import InvalidArgument
from elbowroom.science.climate.weather import Weather
from elbowroom.science.task import Schedule
from elbowroom.science.training import train

from .weather_files import make_weather, write_climatenet, write_deepcam

SCHEDULE = Schedule(steps=40, batch=2, learning_rate=2e-2)


def test_climatenet_is_learnt_from(tmp_path: Path) -> None:
    write_climatenet(tmp_path / "train", 3)
    write_climatenet(tmp_path / "test", 1, first=3)
    recipe = Weather(channels=("TMQ", "U850"), widths=(8, 12), schedule=SCHEDULE)
    result = train(recipe, folder=tmp_path)
    assert result.losses[-1] < 0.5 * result.losses[0]
    assert result.score.value > 0.5


def test_deepcam_is_scaled_by_its_own_statistics(tmp_path: Path) -> None:
    write_deepcam(tmp_path / "train", 2)
    write_deepcam(tmp_path / "validation", 1, first=2)
    recipe = Weather(data="deepcam", crop=(8, 16), schedule=SCHEDULE)
    own = recipe.make_task(tmp_path).draw(4, torch.Generator().manual_seed(0))[0]
    with h5py.File(tmp_path / "stats.h5", "w") as file:
        file["climate/minval"] = np.full(16, 200, np.float32)
        file["climate/maxval"] = np.full(16, 400, np.float32)
    task = recipe.make_task(tmp_path)
    x, y = task.draw(4, torch.Generator().manual_seed(0))
    assert x.shape == (4, 16, 8, 16) and y.shape == (4, 8, 16)
    assert 0 < float(x.min()) < float(x.max()) < 1
    assert float(own.min()) < -1
    # What is rare weighs more, gently.
    _, labels = make_weather(0)
    loss = task.loss(torch.zeros(1, 3, 16, 24), torch.from_numpy(labels)[None])
    assert float(loss) == pytest.approx(np.log(3), rel=1e-5)


def test_the_folder_must_be_given() -> None:
    with pytest.raises(InvalidArgument, match="the folder of deepcam must be given"):
        Weather(data="deepcam").make_task()
