"""Makes the jets of CMS that ship with the package from the files that hold them.

Usage: python benchmarks/make_jet_sample.py FOLDER [--out FILE]

FOLDER has nano_tt_v12.root and nano_tt_v15.root, as `elbowroom data get cms-jets` puts them into
the folder hep (src/elbowroom/science/particles/README.md).
"""

import argparse
from pathlib import Path

import numpy as np

from elbowroom.codec.archive import ArchiveWriter
from elbowroom.codec.bound import Bound
from elbowroom.codec.decode import decode
from elbowroom.codec.encode import encode
from elbowroom.science.particles.cms import SAMPLE_FILE, read_nano

TARGET = Path(__file__).parents[1] / "src" / "elbowroom" / "science" / "particles" / SAMPLE_FILE
FILES = ("nano_tt_v12.root", "nano_tt_v15.root")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args()
    table = read_nano(*(options.folder / name for name in FILES))
    with options.out.open("wb") as file:
        archive = ArchiveWriter(file, list(table))
        for name, column in table.items():
            blob = encode(column, Bound.lossless(), codec="dense", threads=1)
            assert np.array_equal(column, decode(blob)), name
            archive.add(blob)
            print(f"{name} {column.shape}: {column.nbytes:,} to {blob.nbytes:,} bytes")
        archive.finish()
    print(f"{options.out.name}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
