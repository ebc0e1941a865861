"""Writes small files in the formats of HIGGS, of the top tagging reference set and of NanoAOD."""

import gzip
from pathlib import Path

import h5py
import numpy as np


def make_jets(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return constituents, jets x 200 x (E, px, py, pz), and labels: tops have three prongs."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    momenta = np.zeros((count, 200, 4), np.float32)
    for jet, label in enumerate(labels):
        prongs = 3 if label else 1
        axis = np.array([rng.uniform(-1, 1), rng.uniform(-np.pi, np.pi)])
        middle = axis + rng.normal(0, 0.3, (prongs, 2))
        size = int(rng.integers(20, 40))
        near = middle[rng.integers(prongs, size=size)] + rng.normal(0, 0.03, (size, 2))
        transverse = np.sort(rng.exponential(20, size))[::-1]
        px, py = transverse * np.cos(near[:, 1]), transverse * np.sin(near[:, 1])
        pz = transverse * np.sinh(near[:, 0])
        energy = np.sqrt(px**2 + py**2 + pz**2)
        momenta[jet, :size] = np.stack([energy, px, py, pz], axis=1)
    return momenta, labels


def write_top_tagging(path: Path, momenta: np.ndarray, labels: np.ndarray) -> None:
    """Write /table/table as pandas does."""
    rows = np.zeros(
        len(labels),
        dtype=[("index", "<i8"), ("values_block_0", "<f4", 804), ("values_block_1", "<i8", 2)],
    )
    rows["index"] = np.arange(len(labels))
    rows["values_block_0"][:, :800] = momenta.reshape(len(labels), 800)
    rows["values_block_1"][:, 1] = labels
    with h5py.File(path, "w") as file:
        table = file.create_group("table")
        table.attrs["pandas_type"] = np.bytes_(b"frame_table")
        table.create_dataset("table", data=rows, chunks=True, maxshape=(None,))


def write_higgs(path: Path, count: int, seed: int = 0) -> np.ndarray:
    """Write rows as HIGGS.csv has them, packed if the name ends so; return the table."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(count, 29)).astype(np.float32)
    table[:, 0] = np.arange(count) % 2
    table[:, 5] += 2 * table[:, 0]
    lines = "".join(",".join(f"{value:.18e}" for value in row) + "\n" for row in table)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(lines)
    return table
