"""ClimateNet and DeepCAM: small files in their true formats, read through one interface."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from elbowroom.errors import CorruptData, IncompatibleFormat, InvalidArgument, MissingData
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


def alter(path: Path, name: str, values: Any) -> None:
    with h5py.File(path, "a") as file:
        del file[name]
        file[name] = values


def spoil(cell: float) -> np.ndarray:
    values = np.ones((1, HEIGHT, WIDTH), np.float32)
    values[0, 3, 3] = cell
    return values


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("TMQ", np.zeros((1, 4, WIDTH)), f"TMQ of .* got 1 x 4 x {WIDTH} beside LABELS of "),
        ("TMQ", np.zeros((2, HEIGHT, WIDTH)), f"TMQ of .* got 2 x {HEIGHT} x {WIDTH} beside"),
        ("LABELS", np.float32(1), "beside LABELS of a single number"),
        ("LABELS", np.full((HEIGHT, WIDTH), np.nan), "must have labels from 0 to 2"),
        ("LABELS", np.full((HEIGHT, WIDTH), 0.5), "must have labels from 0 to 2"),
        ("U850", spoil(np.nan), "U850 of .* finite number everywhere, found 1 missing"),
        ("U850", spoil(np.inf), "U850 of .* finite number everywhere, found 1 missing"),
    ],
)
def test_a_bad_variable_of_climatenet_is_named(
    name: str, values: Any, said: str, tmp_path: Path
) -> None:
    write_climatenet(tmp_path / "train", 1)
    path = next((tmp_path / "train").iterdir())
    alter(path, name, values)
    with pytest.raises((IncompatibleFormat, CorruptData), match=said) as error:
        open_climatenet(tmp_path / "train").read(0)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("labels_0", np.zeros((4, WIDTH)), f"{HEIGHT} x {WIDTH}, got 4 x {WIDTH}"),
        ("labels_0", np.zeros((1, HEIGHT, WIDTH)), f"got 1 x {HEIGHT} x {WIDTH}"),
        ("labels_0", np.zeros((WIDTH, HEIGHT)), f"got {WIDTH} x {HEIGHT}"),
        ("data", np.full((HEIGHT, WIDTH, 16), np.nan), "TMQ in climate/data of .* finite number"),
    ],
)
def test_a_bad_array_of_deepcam_is_named(
    name: str, values: np.ndarray, said: str, tmp_path: Path
) -> None:
    write_deepcam(tmp_path / "train", 1)
    path = next((tmp_path / "train").iterdir())
    alter(path, f"climate/{name}", values)
    with pytest.raises((IncompatibleFormat, CorruptData), match=said) as error:
        open_deepcam(tmp_path / "train").read(0)
    assert str(path) in str(error.value)


def test_maps_of_two_sizes_are_not_one_set(tmp_path: Path) -> None:
    write_deepcam(tmp_path / "train", 2)
    path = sorted((tmp_path / "train").iterdir())[1]
    alter(path, "climate/data", np.zeros((4, 6, 16), np.float32))
    alter(path, "climate/labels_0", np.zeros((4, 6), np.int64))
    maps = open_deepcam(tmp_path / "train")
    maps.read(0)
    with pytest.raises(IncompatibleFormat, match=f"maps of 4 x 6 cells .* of {HEIGHT} x {WIDTH}"):
        maps.read(1)


@pytest.mark.parametrize(
    ("least", "most", "said"),
    [
        (np.zeros(3), np.ones(3), "climate/minval of .* 16 numbers, one a channel, got 3"),
        (np.zeros(16), np.ones(17), "climate/maxval of .* 16 numbers, one a channel, got 17"),
        (np.float32(0), np.float32(1), "climate/minval of .* got a single number"),
        (np.full(16, np.nan), np.ones(16), "climate/minval of .* finite number everywhere"),
    ],
)
def test_bad_scales_of_deepcam_are_told(least: Any, most: Any, said: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "stats.h5", "w") as file:
        file["climate/minval"], file["climate/maxval"] = least, most
    with pytest.raises((IncompatibleFormat, CorruptData), match=said):
        read_deepcam_scales(tmp_path / "stats.h5", CHANNELS)
