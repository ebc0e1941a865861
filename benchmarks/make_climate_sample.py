"""Makes the climate fields that ship with the package from the full ones.

Usage: python benchmarks/make_climate_sample.py FIELDS.h5 [--out FOLDER]

FIELDS.h5 holds TS, PRECT (60, 192, 288) and T, CLOUD (3, 30, 192, 288) as float32, taken from the
source archive of ldcpy 0.20 (src/elbowroom/science/climate/README.md).
"""

import argparse
from pathlib import Path

import h5py
import numpy as np

from elbowroom.codec.archive import ArchiveWriter
from elbowroom.codec.bound import Bound
from elbowroom.codec.decode import decode
from elbowroom.codec.encode import encode
from elbowroom.science.climate.data import SHIPPED_BOUNDS, SHIPPED_FILE
from elbowroom.science.climate.fields import SAMPLE_BOUND, SAMPLE_FILE

TARGET = Path(__file__).parents[1] / "src" / "elbowroom" / "science" / "climate"
DAYS = 6
LEVEL_STEP = 6
LARGEST_SAMPLE_BYTES = 1_000_000
LARGEST_SHIPPED_BYTES = 2_040_000


def cut_fields(fields: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the first days of the surface fields, and some levels of the first month's T."""
    parts = {
        "TS": fields["TS"][:DAYS],
        "PRECT": fields["PRECT"][:DAYS],
        "T": fields["T"][0, ::LEVEL_STEP],
    }
    return {name: np.ascontiguousarray(part) for name, part in parts.items()}


def write_archive(
    path: Path, fields: dict[str, np.ndarray], bounds: dict[str, Bound], largest: int
) -> None:
    with path.open("wb") as file:
        archive = ArchiveWriter(file, list(fields))
        for name, values in fields.items():
            blob = encode(values, bounds[name], codec="dense", threads=1)
            assert bounds[name].holds(values, decode(blob)), name
            archive.add(blob)
            print(f"{name} {values.shape}: {values.nbytes:,} to {blob.nbytes:,} bytes")
        archive.finish()
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes")
    assert size <= largest, "too large to ship"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fields", type=Path)
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args()
    with h5py.File(options.fields) as file:
        fields = {name: np.asarray(file[name], np.float32) for name in SHIPPED_BOUNDS}
    sample = cut_fields(fields)
    sample_bounds = dict.fromkeys(sample, SAMPLE_BOUND)
    write_archive(options.out / SAMPLE_FILE, sample, sample_bounds, LARGEST_SAMPLE_BYTES)
    write_archive(options.out / SHIPPED_FILE, fields, SHIPPED_BOUNDS, LARGEST_SHIPPED_BYTES)


if __name__ == "__main__":
    main()
