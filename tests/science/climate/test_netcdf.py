"""Arrays out of netCDF-4, classic netCDF and HDF5 files, and what is said of others."""

import sys
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest

from elbowroom.errors import BackendUnavailable, CorruptData, IncompatibleFormat, MissingData
from elbowroom.science.climate.netcdf import read_fields

VALUES = np.arange(12, dtype=np.float32).reshape(1, 3, 4)


def write_netcdf(path: Path, model: str) -> None:
    with netCDF4.Dataset(path, "w", format=model) as file:  # type: ignore[arg-type]
        for name, size in zip(("time", "lat", "lon"), VALUES.shape, strict=True):
            file.createDimension(name, size)
        field = file.createVariable("TMQ", "f4", ("time", "lat", "lon"), fill_value=-1.0)
        field[:] = VALUES


@pytest.mark.parametrize("model", ["NETCDF4", "NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA"])
def test_both_formats_of_netcdf_are_read(model: str, tmp_path: Path) -> None:
    write_netcdf(tmp_path / "x.nc", model)
    fields = read_fields(tmp_path / "x.nc", "TMQ")
    assert fields["TMQ"].dtype == np.float32
    assert np.array_equal(fields["TMQ"], VALUES)


def test_groups_of_hdf5_are_read_by_path(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["climate/data"] = VALUES.astype(np.float64)
    assert np.array_equal(read_fields(tmp_path / "x.h5", "climate/data")["climate/data"], VALUES)


def test_bad_files_are_told(tmp_path: Path) -> None:
    path = tmp_path / "x.nc"
    with pytest.raises(MissingData, match=r"x\.nc is not there"):
        read_fields(path, "TMQ")
    path.write_bytes(b"GRIB....")
    with pytest.raises(IncompatibleFormat, match="neither netCDF nor HDF5"):
        read_fields(path, "TMQ")
    write_netcdf(path, "NETCDF4")
    with pytest.raises(IncompatibleFormat, match="holds no U850"):
        read_fields(path, "U850")
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(CorruptData, match="cannot be read"):
        read_fields(path, "TMQ")


@pytest.mark.parametrize(
    ("model", "package"), [("NETCDF4", "h5py"), ("NETCDF3_CLASSIC", "netCDF4")]
)
def test_the_package_that_is_missing_is_named(
    model: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_netcdf(tmp_path / "x.nc", model)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackendUnavailable, match=f"needs the package {package}: pip install"):
        read_fields(tmp_path / "x.nc", "TMQ")
