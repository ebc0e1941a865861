"""The climate sample: what its README says of it is so."""

import io
from importlib.resources import files

import numpy as np
import pytest

from elbowroom.codec.archive import Archive
from elbowroom.science.climate import SAMPLE_BOUND, sample
from elbowroom.science.climate.fields import SAMPLE_FILE

SHAPES = {"TS": (6, 192, 288), "PRECT": (6, 192, 288), "T": (5, 192, 288)}
# Physical limits that no plausible field leaves, in the fields' units.
LIMITS = {"TS": (180, 340), "PRECT": (0, 1e-5), "T": (170, 330)}


@pytest.fixture(scope="module")
def fields() -> dict[str, np.ndarray]:
    return sample()


def stored() -> bytes:
    return files("elbowroom.science.climate").joinpath(SAMPLE_FILE).read_bytes()


def test_shapes_and_types(fields: dict[str, np.ndarray]) -> None:
    assert {name: field.shape for name, field in fields.items()} == SHAPES
    assert all(field.dtype == np.float32 for field in fields.values())


@pytest.mark.parametrize("name", SHAPES)
def test_values_are_plausible(name: str, fields: dict[str, np.ndarray]) -> None:
    low, high = LIMITS[name]
    slack = SAMPLE_BOUND.value * (high - low)
    assert np.isfinite(fields[name]).all()
    assert low - slack <= fields[name].min() < fields[name].max() <= high
    # Neighbours resemble one another, and no two days or levels are the same.
    steps = np.abs(np.diff(fields[name], axis=-1)).mean(dtype=np.float64)
    assert steps < 0.5 * fields[name].std(dtype=np.float64)
    assert all((a != b).any() for a, b in zip(fields[name], fields[name][1:], strict=False))


def test_the_stated_bound_is_the_stored_one() -> None:
    archive = Archive(io.BytesIO(stored()))
    assert list(archive) == list(SHAPES)
    for name in archive:
        blob = archive.read(name)
        assert blob.bound == SAMPLE_BOUND
        assert blob.codec == "dense"
        # The limit that the encoder checked, as a share of the range.
        found = blob.recipe.limit / np.ptp(sample()[name].astype(np.float64))
        assert found == pytest.approx(SAMPLE_BOUND.value, rel=1e-4)


def test_the_sample_is_small() -> None:
    assert len(stored()) <= 1_000_000
