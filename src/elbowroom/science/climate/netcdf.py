"""Reads arrays out of netCDF and HDF5 files."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elbowroom.errors import CorruptData, IncompatibleFormat, MissingData
from elbowroom.science.packages import need

HDF5 = b"\x89HDF\r\n\x1a\n"
CLASSIC = b"CDF"


def read_fields(path: Path, *names: str) -> dict[str, NDArray[np.float32]]:
    """Return arrays of a file by their names, as float32.

    A netCDF-4 file is an HDF5 file, so that h5py is enough; netCDF4 reads the classic format.
    """
    try:
        with path.open("rb") as file:
            signature = file.read(8)
    except FileNotFoundError:
        raise MissingData(f"{path} is not there: check the name") from None
    if signature == HDF5:
        opened = need("h5py", "reading netCDF-4 and HDF5 files").File
    elif signature.startswith(CLASSIC):
        opened = need("netCDF4", "reading classic netCDF files").Dataset
    else:
        raise IncompatibleFormat(f"{path} is neither netCDF nor HDF5: it begins with {signature!r}")
    try:
        with opened(path, "r") as file:
            return {name: _read(path, file, name) for name in names}
    except OSError as error:
        raise CorruptData(f"{path} cannot be read ({error}): copy it again") from None


def _read(path: Path, file: Any, name: str) -> NDArray[np.float32]:
    try:
        values = file[name][...]
    except (KeyError, IndexError):
        raise IncompatibleFormat(f"{path} holds no {name}") from None
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(np.float32), np.nan)
    return np.ascontiguousarray(values, np.float32)
