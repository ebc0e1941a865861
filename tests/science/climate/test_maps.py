"""ClimateNet and DeepCAM: small files in their true formats, read through one interface."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from elbowroom.errors import IncompatibleFormat, InvalidArgument, MissingData
from elbowroom.science.climate.maps import (
    CHANNELS,
    WEATHER,
    open_climatenet,
    open_deepcam,
    read_deepcam_scales,
)

from .weather_files import HEIGHT, WIDTH, make_weather, write_climatenet, write_deepcam


@pytest.mark.parametrize("label_time", [True, False])
def test_climatenet_is_read(label_time: bool, tmp_path: Path) -> None:
    write_climatenet(tmp_path / "train", 2, label_time=label_time)
    maps = open_climatenet(tmp_path / "train", ["U850", "TMQ"])
    assert (len(maps), maps.channels, maps.classes) == (2, ("U850", "TMQ"), WEATHER)
    fields, labels = make_weather(1)
    x, y = maps.read(1)
    assert x.shape == (2, HEIGHT, WIDTH) and x.dtype == torch.float32
    assert np.array_equal(x[1], fields[..., 0]) and np.array_equal(x[0], fields[..., 1])
    assert y.dtype == torch.int64 and np.array_equal(y, labels)


def test_deepcam_is_read_alike(tmp_path: Path) -> None:
    write_climatenet(tmp_path / "nc", 2)
    write_deepcam(tmp_path / "h5", 2)
    one, other = open_climatenet(tmp_path / "nc"), open_deepcam(tmp_path / "h5")
    assert one.channels == other.channels == CHANNELS
    for number in range(2):
        for a, b in zip(one.read(number), other.read(number), strict=True):
            assert torch.equal(a, b)
    chosen = open_deepcam(tmp_path / "h5", ["ZBOT"]).read(0)[0]
    assert torch.equal(chosen, other.read(0)[0][-1:])


def test_scales_of_deepcam_are_its_own(tmp_path: Path) -> None:
    assert read_deepcam_scales(tmp_path / "stats.h5", CHANNELS) is None
    with h5py.File(tmp_path / "stats.h5", "w") as file:
        file["climate/minval"] = np.arange(16, dtype=np.float32)
        file["climate/maxval"] = np.arange(16, dtype=np.float32) * 3
    scales = read_deepcam_scales(tmp_path / "stats.h5", ["V850", "TMQ"])
    assert scales is not None
    least, extent = scales
    assert least.flatten().tolist() == [2.0, 0.0]
    assert extent.flatten().tolist() == [4.0, 1.0]  # a channel that never changes is left as it is


def test_bad_folders_channels_and_labels_are_told(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"no file data-\*\.nc"):
        open_climatenet(tmp_path)
    write_deepcam(tmp_path / "h5", 1)
    with pytest.raises(InvalidArgument, match="channels must be some of TMQ"):
        open_deepcam(tmp_path / "h5", ["SST"])
    path = next((tmp_path / "h5").iterdir())
    with h5py.File(path, "a") as file:
        file["climate/labels_0"][0, 0] = 3  # type: ignore[index]
    with pytest.raises(IncompatibleFormat, match="labels from 0 to 2"):
        open_deepcam(tmp_path / "h5").read(0)
    with h5py.File(path, "w") as file:
        file["climate/data"] = np.zeros((4, 4, 8), np.float32)
        file["climate/labels_0"] = np.zeros((4, 4), np.int64)
    with pytest.raises(IncompatibleFormat, match="must have 16 channels"):
        open_deepcam(tmp_path / "h5").read(0)
