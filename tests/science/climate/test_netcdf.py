"""Arrays out of netCDF-4, classic netCDF and HDF5 files, and what is said of others."""

import sys
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest

from elbowroom.errors import (
    BackendUnavailable,
    CorruptData,
    IncompatibleFormat,
    InvalidArgument,
    MissingData,
)
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


@pytest.mark.parametrize("model", ["NETCDF4", "NETCDF3_CLASSIC"])
def test_packed_values_are_unpacked_and_marked_ones_are_missing(model: str, tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w", format=model) as file:  # type: ignore[arg-type]
        file.createDimension("x", 4)
        field = file.createVariable("TS", "i2", ("x",), fill_value=-32768)
        field.scale_factor, field.add_offset = 0.01, 273.15
        field[:] = np.ma.array([280.0, 290.0, 300.0, 1.0], mask=[False, False, False, True])
        field = file.createVariable("PS", "f4", ("x",))
        field.missing_value = np.float32(1e20)
        field[:] = np.array([1.0, 1e20, 3.0, 4.0])
    fields = read_fields(tmp_path / "x.nc", "TS", "PS")
    assert fields["TS"].dtype == np.float32
    assert np.allclose(fields["TS"], [280.0, 290.0, 300.0, np.nan], atol=0.01, equal_nan=True)
    assert np.array_equal(fields["PS"], [1.0, np.nan, 3.0, 4.0], equal_nan=True)


def test_a_mark_of_another_type_counts_too(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["PS"] = np.array([1.0, 1e20, 3.0], np.float32)
        file["PS"].attrs["missing_value"] = 1e20  # a double, as many writers leave it
    found = read_fields(tmp_path / "x.h5", "PS")["PS"]
    assert np.array_equal(found, [1.0, np.nan, 3.0], equal_nan=True)


def test_what_is_no_array_of_numbers_is_told(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["words"] = np.array([b"abc", b"def"])
        file.create_group("box")
        file["odd"] = np.zeros(3)
        file["odd"].attrs["scale_factor"] = "ten"
    for name in ("words", "box"):
        with pytest.raises(IncompatibleFormat, match=rf"{name} of .*x\.h5 must be an array of num"):
            read_fields(tmp_path / "x.h5", name)
    with pytest.raises(
        IncompatibleFormat, match=r"scale_factor of odd in .*x\.h5 must be a number"
    ):
        read_fields(tmp_path / "x.h5", "odd")
    (tmp_path / "data-1.nc").mkdir()
    with pytest.raises(InvalidArgument, match=r"data-1\.nc is a folder, and a file is needed"):
        read_fields(tmp_path / "data-1.nc", "TMQ")


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
