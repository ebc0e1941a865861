"""Reads the sample: three fields of the CESM Large Ensemble, stored by our own codec."""

import io
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec.archive import Archive
from elbowroom.codec.bound import Bound
from elbowroom.codec.decode import decode

SAMPLE_FILE = "sample.er"

# How far the sample's values may lie from the model's own output.
SAMPLE_BOUND = Bound.range_relative(1e-5)


def sample() -> dict[str, NDArray[np.float32]]:
    """Return surface temperature TS, precipitation PRECT and temperature T by name.

    TS (K) and PRECT (m/s) are 6 days, T (K) is 5 levels of a monthly mean; each is a stack of
    maps of 192 latitudes and 288 longitudes. README.md in this package names their source.
    """
    stored = files("elbowroom.science.climate").joinpath(SAMPLE_FILE).read_bytes()
    archive = Archive(io.BytesIO(stored))
    return {name: decode(archive.read(name)) for name in archive}
