"""Reads arrays out of netCDF and HDF5 files."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elbowroom.errors import CorruptData, IncompatibleFormat
from elbowroom.science.files import require_file
from elbowroom.science.packages import need

HDF5 = b"\x89HDF\r\n\x1a\n"
CLASSIC = b"CDF"
NUMBERS = "biuf"  # kinds of types, as numpy names them


def read_fields(path: Path, *names: str) -> dict[str, NDArray[np.float32]]:
    """Return arrays of a file by their names, as float32.

    A netCDF-4 file is an HDF5 file, so that h5py is enough; netCDF4 reads the classic format.
    Of both, packed values are unpacked, and what is marked as missing is NaN.
    """
    with require_file(path).open("rb") as file:
        signature = file.read(8)
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
        stored = file[name]
    except (KeyError, IndexError):
        raise IncompatibleFormat(f"{path} holds no {name}") from None
    kind = getattr(getattr(stored, "dtype", None), "kind", None)
    if kind is None or kind not in NUMBERS:
        raise IncompatibleFormat(f"{name} of {path} must be an array of numbers, and is not")
    values = stored[...]
    if isinstance(values, np.ma.MaskedArray):
        # The package netCDF4 has unpacked them.
        values = np.ma.filled(values.astype(np.float32), np.nan)
    elif hasattr(stored, "attrs"):
        values = _unpack(path, name, np.asarray(values), stored.attrs)
    return np.asarray(values, np.float32, order="C")


def _unpack(path: Path, name: str, stored: NDArray[Any], attributes: Any) -> NDArray[Any]:
    """Apply what the conventions of netCDF say of packed and missing values."""

    def find(attribute: str) -> NDArray[Any] | None:
        value = attributes.get(attribute)
        if value is None:
            return None
        told = np.asarray(value).reshape(-1)
        if told.dtype.kind not in NUMBERS:
            raise IncompatibleFormat(f"{attribute} of {name} in {path} must be a number")
        return told

    scale, offset = find("scale_factor"), find("add_offset")
    values = stored
    if scale is not None or offset is not None:
        factor = 1.0 if scale is None else scale[0]
        values = stored * np.float64(factor) + np.float64(0.0 if offset is None else offset[0])
    for attribute in ("_FillValue", "missing_value"):
        marks = find(attribute)
        if marks is None:
            continue
        # Marks stand among the values as they are stored, before any scale, and in their type.
        missing = np.isin(stored, marks.astype(stored.dtype) if stored.dtype.kind == "f" else marks)
        if missing.any():
            values = np.where(missing, np.float64("nan"), values)
    return values
