"""Climate fields: those that ship keep their bounds, and full ones are preferred."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from elbowroom.codec.archive import Archive
from elbowroom.errors import BackendUnavailable, CorruptData, MissingData
from elbowroom.science.climate import data
from elbowroom.science.climate.data import (
    MM_PER_DAY_PER_M_PER_S,
    SHIPPED_BOUNDS,
    load_days,
    load_months,
)
from elbowroom.science.data import locate


def test_the_stated_bounds_are_the_stored_ones() -> None:
    with locate("climate-shipped")["fields.er"].open("rb") as file:
        archive = Archive(file)
        assert list(archive) == list(SHIPPED_BOUNDS)
        for name, bound in SHIPPED_BOUNDS.items():
            assert archive.read(name).bound == bound
            assert archive.read(name).recipe.limit <= bound.value


def test_sixty_days_ship() -> None:
    days = load_days()
    assert days.source == "shipped"
    assert days.surface_k.shape == days.rain_mm_per_day.shape == (60, 192, 288)
    assert 200 < float(days.surface_k.min()) < float(days.surface_k.max()) < 330
    assert float(days.rain_mm_per_day.min()) >= 0
    assert 2 < float(days.rain_mm_per_day.mean()) < 4  # the globe's mean is about 3 mm a day
    # It is January: 60 degrees south is warmer than 60 north, and the tropics are warmer still.
    north, south, middle = (
        days.surface_k[:, (days.latitude_deg - latitude).abs().argmin()].mean()
        for latitude in (60, -60, 0)
    )
    assert north + 10 < south < middle - 10


def test_three_months_of_thirty_levels_ship() -> None:
    months = load_months()
    assert months.temperature_k.shape == months.cloud.shape == (3, 30, 192, 288)
    assert months.source == "shipped"
    assert -0.03 < float(months.cloud.min()) and float(months.cloud.max()) < 1.03
    # The lowest level is warm, and the uppermost are free of clouds.
    assert months.temperature_k[:, -1].mean() > months.temperature_k[:, 15].mean() + 30
    assert float(months.cloud[:, :6].max()) < 0.03
    assert float(months.cloud[:, 8:].max()) > 0.5


@pytest.mark.parametrize("layout", ["one file", "a file a field"])
def test_full_fields_are_preferred(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    fields = {
        "TS": rng.random((100, 4, 6), np.float32),
        "PRECT": rng.random((60, 4, 6), np.float32),
    }
    paths = {name: tmp_path / f"{name}.h5" for name in fields}
    for name, path in paths.items():
        with h5py.File(path, "w") as file:
            for field in fields if layout == "one file" else [name]:
                file[field] = fields[field]
    if layout == "one file":
        found = "cesm-h5", {"cesm_le_cam5.h5": paths["TS"]}
    else:
        found = "cesm", {data.FULL_FILES[name]: path for name, path in paths.items()}
    monkeypatch.setattr(data, "locate_first", lambda *names, folder: found)
    days = load_days()
    assert days.source == "full" and len(days.surface_k) == 60
    assert np.array_equal(days.surface_k.numpy(), fields["TS"][:60])
    torch.testing.assert_close(
        days.rain_mm_per_day, torch.from_numpy(fields["PRECT"]) * MM_PER_DAY_PER_M_PER_S
    )
    assert load_days(which="shipped").source == "shipped"


def test_full_fields_can_be_insisted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingData, match="run 'elbowroom data get cesm'"):
        load_days(which="full")

    def lack(*_: object) -> None:
        raise BackendUnavailable("h5py is not here")

    monkeypatch.setattr(data, "_read_full", lack)
    assert load_months().source == "shipped"
    with pytest.raises(BackendUnavailable):
        load_months(which="full")


def test_damaged_full_fields_are_not_passed_over(data_folder: Path) -> None:
    (data_folder / "climate").mkdir()
    (data_folder / "climate" / "cesm_le_cam5.h5").write_bytes(b"\x89HDF")
    with pytest.raises(CorruptData, match=r"cesm_le_cam5\.h5 has only 4 of its 39162210 bytes"):
        load_days()
