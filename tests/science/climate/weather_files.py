"""Writes small files in the formats of ClimateNet and DeepCAM."""

from pathlib import Path

import h5py
import netCDF4
import numpy as np

from elbowroom.science.climate.maps import CHANNELS

HEIGHT, WIDTH = 16, 24


def make_weather(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return channels last and labels; where the first channel is high or low, there is weather."""
    rng = np.random.default_rng(number)
    fields = rng.normal(280, 1, (HEIGHT, WIDTH, len(CHANNELS))).astype(np.float32)
    labels = np.zeros((HEIGHT, WIDTH), np.int64)
    labels[2:7, 3:9] = 1
    labels[9:14, 10:21] = 2
    labels = np.roll(labels, 5 * number, axis=1)
    fields[..., 0] += 20.0 * (labels == 1) - 20.0 * (labels == 2)
    return fields, labels


def write_climatenet(folder: Path, count: int, first: int = 0, *, label_time: bool = False) -> None:
    """Write data-*.nc: variables of time, lat and lon, and LABELS."""
    folder.mkdir(parents=True)
    for number in range(first, first + count):
        fields, labels = make_weather(number)
        with netCDF4.Dataset(folder / f"data-2000-01-{number + 1:02}-01-1.nc", "w") as file:
            for name, size in (("time", 1), ("lat", HEIGHT), ("lon", WIDTH)):
                file.createDimension(name, size)
            for index, name in enumerate(CHANNELS):
                file.createVariable(name, "f4", ("time", "lat", "lon"))[0] = fields[..., index]
            axes = ("time", "lat", "lon") if label_time else ("lat", "lon")
            file.createVariable("LABELS", "i8", axes)[...] = labels


def write_deepcam(folder: Path, count: int, first: int = 0) -> None:
    """Write data-*.h5: climate/data, channels last, and climate/labels_0."""
    folder.mkdir(parents=True)
    for number in range(first, first + count):
        fields, labels = make_weather(number)
        with h5py.File(folder / f"data-2000-01-{number + 1:02}-00-0.h5", "w") as file:
            file["climate/data"] = fields
            file["climate/labels_0"] = labels
            file["climate/labels_1"] = labels
