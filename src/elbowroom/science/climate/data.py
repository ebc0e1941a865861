"""Fields of the CESM Large Ensemble: the full ones if they are here, else those that we ship.

The package ships 60 days of surface temperature and rain, and three months of temperature and
cloud at 30 levels, stored by our own codec within the bounds below.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elbowroom.codec.archive import Archive
from elbowroom.codec.bound import Bound
from elbowroom.codec.decode import decode
from elbowroom.errors import BackendUnavailable, MissingData
from elbowroom.science.climate.netcdf import read_fields
from elbowroom.science.data import locate, locate_first

SHIPPED_FILE = "fields.er"
SECONDS_PER_DAY = 86_400
MM_PER_DAY_PER_M_PER_S = 1000.0 * SECONDS_PER_DAY
# How far the shipped values may lie from the model's own output, in the fields' units.
SHIPPED_BOUNDS = {
    "TS": Bound.absolute(0.5),  # K
    "PRECT": Bound.absolute(0.3 / MM_PER_DAY_PER_M_PER_S),  # m/s, that is 0.3 mm a day
    "T": Bound.absolute(1.0),  # K
    "CLOUD": Bound.absolute(0.025),  # share of the sky
}
FULL_FILES = {
    "TS": "orig.TS.100days.nc",
    "PRECT": "orig.PRECT.60days.nc",
    "T": "cam-fv.T.3months.nc",
    "CLOUD": "cam-fv.CLOUD.3months.nc",
}
DAYS = 60

Which = Literal["any", "full", "shipped"]


@dataclass(frozen=True, kw_only=True)
class Days:
    """Daily means on the globe: days x latitudes x longitudes."""

    surface_k: Tensor
    rain_mm_per_day: Tensor
    latitude_deg: Tensor
    source: Literal["full", "shipped"]


@dataclass(frozen=True, kw_only=True)
class Months:
    """Monthly means of the atmosphere: months x levels (from above) x latitudes x longitudes."""

    temperature_k: Tensor
    cloud: Tensor  # share of the sky
    latitude_deg: Tensor
    source: Literal["full", "shipped"]


def load_days(folder: Path | None = None, *, which: Which = "any") -> Days:
    """Return 60 days; by default the full fields if they can be read, else the shipped ones."""
    fields, source = _load(("TS", "PRECT"), folder, which)
    return Days(
        surface_k=torch.from_numpy(fields["TS"][:DAYS]),
        rain_mm_per_day=torch.from_numpy(fields["PRECT"][:DAYS] * MM_PER_DAY_PER_M_PER_S),
        latitude_deg=_latitudes(fields["TS"].shape[-2]),
        source=source,
    )


def load_months(folder: Path | None = None, *, which: Which = "any") -> Months:
    """Return 3 months; by default the full fields if they can be read, else the shipped ones."""
    fields, source = _load(("T", "CLOUD"), folder, which)
    return Months(
        temperature_k=torch.from_numpy(fields["T"]),
        cloud=torch.from_numpy(fields["CLOUD"]),
        latitude_deg=_latitudes(fields["T"].shape[-2]),
        source=source,
    )


def read_shipped(*names: str) -> dict[str, NDArray[np.float32]]:
    """Return fields that come with the package."""
    with locate("climate-shipped")[SHIPPED_FILE].open("rb") as file:
        archive = Archive(file)
        return {name: decode(archive.read(name)) for name in names}


def _load(
    names: tuple[str, ...], folder: Path | None, which: Which
) -> tuple[dict[str, NDArray[np.float32]], Literal["full", "shipped"]]:
    if which != "shipped":
        try:
            return _read_full(names, folder), "full"
        except (MissingData, BackendUnavailable):
            if which == "full":
                raise
    return read_shipped(*names), "shipped"


def _read_full(names: tuple[str, ...], folder: Path | None) -> dict[str, NDArray[np.float32]]:
    name, paths = locate_first("cesm-h5", "cesm", folder=folder)
    if name == "cesm-h5":
        return read_fields(paths["cesm_le_cam5.h5"], *names)
    return {name: read_fields(paths[FULL_FILES[name]], name)[name] for name in names}


def _latitudes(count: int) -> Tensor:
    return torch.linspace(-90, 90, count)
