"""Maps with a class for every cell: held in memory, or in files of ClimateNet and DeepCAM."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from elbowroom.errors import IncompatibleFormat, InvalidArgument, MissingData
from elbowroom.science.climate.netcdf import read_fields

# The order in which DeepCAM stores them; ClimateNet has the same by name.
CHANNELS = (
    *("TMQ", "U850", "V850", "UBOT", "VBOT", "QREFHT", "PS", "PSL"),
    *("T200", "T500", "PRECT", "TS", "TREFHT", "Z1000", "Z200", "ZBOT"),
)
WEATHER = ("background", "tropical cyclone", "atmospheric river")


class MapSet(Protocol):
    """Maps that can be read by number: channels x latitudes x longitudes, and classes of cells."""

    @property
    def channels(self) -> tuple[str, ...]:
        """Name the channels."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Name the classes, the background first."""
        ...

    def __len__(self) -> int: ...

    def read(self, number: int) -> tuple[Tensor, Tensor]:
        """Return a map and the class of its every cell."""
        ...


@dataclass(frozen=True, kw_only=True)
class StoredMaps:
    """Maps that are all in memory."""

    maps: Tensor
    labels: Tensor
    channels: tuple[str, ...]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.maps)

    def read(self, number: int) -> tuple[Tensor, Tensor]:
        """Return a map and the class of its every cell."""
        return self.maps[number], self.labels[number]


@dataclass(frozen=True, kw_only=True)
class _Files:
    """Maps that lie in a file each."""

    paths: tuple[Path, ...]
    channels: tuple[str, ...]
    classes: tuple[str, ...] = WEATHER

    def __len__(self) -> int:
        return len(self.paths)


class ClimateNet(_Files):
    """Files data-*.nc of ClimateNet: every channel is a variable, LABELS the expert's classes."""

    def read(self, number: int) -> tuple[Tensor, Tensor]:
        """Return a map and the class of its every cell."""
        path = self.paths[number]
        fields = read_fields(path, *self.channels, "LABELS")
        # Fields have a time axis of length one; whether the labels do differs.
        shape = fields["LABELS"].shape[-2:]
        maps = np.stack([fields[name].reshape(shape) for name in self.channels])
        labels = torch.from_numpy(fields["LABELS"].reshape(shape)).long()
        return torch.from_numpy(maps), _check_labels(path, labels, len(self.classes))


class DeepCAM(_Files):
    """Files data-*.h5 of DeepCAM: climate/data has 16 channels last, climate/labels_0 classes."""

    def read(self, number: int) -> tuple[Tensor, Tensor]:
        """Return a map and the class of its every cell."""
        path = self.paths[number]
        fields = read_fields(path, "climate/data", "climate/labels_0")
        maps, labels = fields["climate/data"], torch.from_numpy(fields["climate/labels_0"]).long()
        if maps.ndim != 3 or maps.shape[-1] != len(CHANNELS):
            raise IncompatibleFormat(f"{path} must have {len(CHANNELS)} channels, got {maps.shape}")
        wanted = [CHANNELS.index(name) for name in self.channels]
        chosen = np.ascontiguousarray(maps[..., wanted].transpose(2, 0, 1))
        return torch.from_numpy(chosen), _check_labels(path, labels, len(self.classes))


def open_climatenet(folder: Path, channels: Sequence[str] = CHANNELS) -> ClimateNet:
    """List the files of one folder of ClimateNet, train or test."""
    return ClimateNet(paths=_list_files(folder, "data-*.nc"), channels=_check_channels(channels))


def open_deepcam(folder: Path, channels: Sequence[str] = CHANNELS) -> DeepCAM:
    """List the files of one folder of DeepCAM: train, validation or test."""
    return DeepCAM(paths=_list_files(folder, "data-*.h5"), channels=_check_channels(channels))


def read_deepcam_scales(path: Path, channels: Sequence[str]) -> tuple[Tensor, Tensor] | None:
    """Return least value and range of channels as DeepCAM's stats.h5 has them, if it is there."""
    if not path.is_file():
        return None
    fields = read_fields(path, "climate/minval", "climate/maxval")
    wanted = [CHANNELS.index(name) for name in channels]
    least, most = (torch.from_numpy(fields[f"climate/{end}val"])[wanted] for end in ("min", "max"))
    extent = torch.where(most > least, most - least, 1.0)
    return least[:, None, None], extent[:, None, None]


def _list_files(folder: Path, pattern: str) -> tuple[Path, ...]:
    paths = tuple(sorted(folder.glob(pattern)))
    if not paths:
        raise MissingData(f"there is no file {pattern} in {folder}: name the folder that has them")
    return paths


def _check_channels(channels: Sequence[str]) -> tuple[str, ...]:
    unknown = [name for name in channels if name not in CHANNELS]
    if unknown or not channels:
        raise InvalidArgument(f"channels must be some of {', '.join(CHANNELS)}, got {channels!r}")
    return tuple(channels)


def _check_labels(path: Path, labels: Tensor, classes: int) -> Tensor:
    if labels.numel() == 0 or int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise IncompatibleFormat(f"{path} must have labels from 0 to {classes - 1}")
    return labels
