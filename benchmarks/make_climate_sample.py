"""Makes the climate sample that ships with the package from the full fields.

Usage: python benchmarks/make_climate_sample.py FIELDS.h5 [--out FILE]

FIELDS.h5 holds TS, PRECT (60, 192, 288) and T (3, 30, 192, 288) as float32, taken from the source
archive of ldcpy 0.20 (src/elbowroom/science/climate/README.md).
"""

import argparse
from pathlib import Path

import h5py
import numpy as np

from elbowroom.codec.archive import ArchiveWriter
from elbowroom.codec.decode import decode
from elbowroom.codec.encode import encode
from elbowroom.science.climate.fields import SAMPLE_BOUND, SAMPLE_FILE

TARGET = Path(__file__).parents[1] / "src" / "elbowroom" / "science" / "climate" / SAMPLE_FILE
DAYS = 6
LEVEL_STEP = 6
LARGEST_BYTES = 1_000_000


def cut_fields(path: Path) -> dict[str, np.ndarray]:
    """Return the first days of the surface fields, and some levels of the first month's T."""
    with h5py.File(path) as file:
        parts = {
            "TS": file["TS"][:DAYS],  # type: ignore[index]
            "PRECT": file["PRECT"][:DAYS],  # type: ignore[index]
            "T": file["T"][0, ::LEVEL_STEP],  # type: ignore[index]
        }
    return {name: np.ascontiguousarray(part, np.float32) for name, part in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fields", type=Path)
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args()
    fields = cut_fields(options.fields)
    with options.out.open("wb") as file:
        archive = ArchiveWriter(file, list(fields))
        for name, values in fields.items():
            blob = encode(values, SAMPLE_BOUND, codec="dense", threads=1)
            assert SAMPLE_BOUND.holds(values, decode(blob)), name
            archive.add(blob)
            print(f"{name} {values.shape}: {values.nbytes:,} to {blob.nbytes:,} bytes")
        archive.finish()
    size = options.out.stat().st_size
    print(f"{options.out.name}: {size:,} bytes")
    assert size <= LARGEST_BYTES, "too large to ship"


if __name__ == "__main__":
    main()
