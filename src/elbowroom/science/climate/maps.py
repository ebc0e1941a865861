"""Maps with a class for every cell: held in memory, or in files of ClimateNet and DeepCAM."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elbowroom.errors import CorruptData, IncompatibleFormat, InvalidArgument, MissingData
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
class _Files(ABC):
    """Maps that lie in a file each, all of one size."""

    paths: tuple[Path, ...]
    channels: tuple[str, ...]
    classes: tuple[str, ...] = WEATHER

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def _size(self) -> tuple[int, ...]:
        return self._load(self.paths[0])[1].shape

    def read(self, number: int) -> tuple[Tensor, Tensor]:
        """Return a map and the class of its every cell."""
        path = self.paths[number]
        maps, labels = self._load(path)
        if labels.shape != self._size:
            raise IncompatibleFormat(
                f"{path} has maps of {_say(labels.shape)} cells and {self.paths[0].name} of "
                f"{_say(self._size)}: the maps of a folder must have one size"
            )
        return torch.from_numpy(maps), _check_labels(path, labels, len(self.classes))

    @abstractmethod
    def _load(self, path: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the chosen channels and the labels, of equal sizes."""


class ClimateNet(_Files):
    """Files data-*.nc of ClimateNet: every channel is a variable, LABELS the expert's classes."""

    def _load(self, path: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        fields = read_fields(path, *self.channels, "LABELS")
        shape = fields["LABELS"].shape[-2:]
        for name, values in fields.items():
            # Fields have a time axis of length one; whether the labels do differs.
            if len(shape) != 2 or values.shape not in (shape, (1, *shape)):
                raise IncompatibleFormat(
                    f"{name} of {path} must be one map of the size of LABELS, got "
                    f"{_say(values.shape)} beside LABELS of {_say(fields['LABELS'].shape)}"
                )
        for name in self.channels:
            _check_finite(path, name, fields[name])
        maps = np.stack([fields[name].reshape(shape) for name in self.channels])
        return maps, fields["LABELS"].reshape(shape)


class DeepCAM(_Files):
    """Files data-*.h5 of DeepCAM: climate/data has 16 channels last, climate/labels_0 classes."""

    def _load(self, path: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        fields = read_fields(path, "climate/data", "climate/labels_0")
        maps, labels = fields["climate/data"], fields["climate/labels_0"]
        if maps.ndim != 3 or maps.shape[-1] != len(CHANNELS):
            raise IncompatibleFormat(
                f"climate/data of {path} must have {len(CHANNELS)} channels last, got "
                f"{_say(maps.shape)}"
            )
        if labels.shape != maps.shape[:2]:
            raise IncompatibleFormat(
                f"climate/labels_0 of {path} must be of the size of its maps, "
                f"{_say(maps.shape[:2])}, got {_say(labels.shape)}"
            )
        wanted = [CHANNELS.index(name) for name in self.channels]
        chosen = np.ascontiguousarray(maps[..., wanted].transpose(2, 0, 1))
        for name, values in zip(self.channels, chosen, strict=True):
            _check_finite(path, f"{name} in climate/data", values)
        return chosen, labels


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
    for name, values in fields.items():
        if values.shape != (len(CHANNELS),):
            raise IncompatibleFormat(
                f"{name} of {path} must be {len(CHANNELS)} numbers, one a channel, got "
                f"{_say(values.shape)}"
            )
        _check_finite(path, name, values)
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


def _check_finite(path: Path, name: str, values: NDArray[np.float32]) -> None:
    bad = int(values.size - np.isfinite(values).sum())
    if bad:
        raise CorruptData(
            f"{name} of {path} must have a finite number everywhere, found {bad} missing, NaN "
            "or infinite: fill them in or leave the file out"
        )


def _check_labels(path: Path, labels: NDArray[np.float32], classes: int) -> Tensor:
    if labels.size == 0 or not np.isin(labels, np.arange(classes)).all():
        raise IncompatibleFormat(f"{path} must have labels from 0 to {classes - 1}")
    return torch.from_numpy(labels).long()


def _say(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a single number"
