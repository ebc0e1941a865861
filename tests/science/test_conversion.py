"""Originals of small data sets become the arrays of the catalogue, or are refused."""

import hashlib
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from elbowroom.errors import CorruptData, IncompatibleFormat, InvalidArgument, MissingData
from elbowroom.science.arrays import Array
from elbowroom.science.catalogue import Dataset, examine_file, find_dataset
from elbowroom.science.conversion import convert

RNG = np.random.default_rng(0)


def expect(name: str, **arrays: np.ndarray) -> Dataset:
    """Return the data set of that name, with other arrays in place of its own."""
    dataset = find_dataset(name)
    wanted = tuple(
        Array(
            name="" if key == "alone" else key,
            dtype=str(values.dtype),
            shape=values.shape,
            sha256=hashlib.sha256(values.tobytes()).hexdigest(),
        )
        for key, values in arrays.items()
    )
    return replace(dataset, files=(replace(dataset.files[0], arrays=wanted),))


def check(dataset: Dataset, source: Path, folder: Path) -> None:
    path = convert(dataset, source, folder)
    assert path == folder / dataset.files[0].path
    assert examine_file(path, dataset.files[0]) == "present"
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_jet_images(tmp_path: Path) -> None:
    x = RNG.random((5, 4, 4)).astype(np.float32)
    with h5py.File(tmp_path / "jet_images.h5", "w") as file:
        file["QCD"], file["TT"] = x[:3, ..., None].astype(np.float64), x[3:, ..., None]
    dataset = expect("jet-images", x=x, y=np.array([0, 0, 0, 1, 1], np.uint8))
    check(dataset, tmp_path, tmp_path / "out")
    check(dataset, tmp_path / "jet_images.h5", tmp_path / "out")
    with h5py.File(tmp_path / "jet_images.h5", "a") as file:
        file["TT"][0] = 9.0  # type: ignore[index]
    with pytest.raises(IncompatibleFormat, match=r"must give the array x: float32 of 5 x 4 x 4"):
        convert(dataset, tmp_path, tmp_path / "out")
    (tmp_path / "jet_images.h5").write_bytes(b"nothing")
    with pytest.raises(CorruptData, match=r"jet_images\.h5 cannot be read as GitHub FNALLPC"):
        convert(dataset, tmp_path, tmp_path / "out")


def test_higgs_from_a_copy_of_its_repository(tmp_path: Path) -> None:
    inside = tmp_path / "examples" / "binary_classification"
    inside.mkdir(parents=True)
    arrays: dict[str, np.ndarray] = {}
    for name, rows in (("train", 6), ("test", 2)):
        x = RNG.normal(size=(rows, 28)).round(3)
        y = np.arange(rows) % 2
        np.savetxt(inside / f"binary.{name}", np.c_[y, x], fmt="%.3f", delimiter="\t")
        arrays |= {f"x_{name}": x.astype(np.float32), f"y_{name}": y.astype(np.uint8)}
    check(expect("higgs", **arrays), tmp_path, tmp_path / "out")
    with pytest.raises(InvalidArgument, match=r"is one file, and higgs is made from .*train and"):
        convert(expect("higgs", **arrays), inside / "binary.train", tmp_path / "out")
    (inside / "binary.test").unlink()
    with pytest.raises(MissingData, match=r"binary\.test is not there"):
        convert(expect("higgs", **arrays), tmp_path, tmp_path / "out")


def test_higgsml(tmp_path: Path) -> None:
    x = RNG.normal(size=(5, 30)).round(3).astype(np.float32)
    heading = ",".join(f"c{number}" for number in range(35)) + "\n"
    for name, rows in (("sig", x[:2]), ("bg", x[2:])):
        lines = ["7," + ",".join(f"{v:.3f}" for v in row) + ",0.1,s,t,0.2\n" for row in rows]
        (tmp_path / f"train_sml_{name}.csv").write_text(heading + "".join(lines))
    y = np.array([1, 1, 0, 0, 0], np.uint8)
    check(expect("higgsml", x=x, y=y), tmp_path, tmp_path / "out")


def test_marmousi(tmp_path: Path) -> None:
    values = RNG.random((1601, 401)).astype(np.float32)
    values.tofile(tmp_path / "vp_marmousi_bi")
    check(expect("marmousi", alone=values), tmp_path, tmp_path / "out")
    (tmp_path / "vp_marmousi_bi").write_bytes(bytes(40))
    with pytest.raises(CorruptData, match="vp_marmousi_bi cannot be read as"):
        convert(expect("marmousi", alone=values), tmp_path, tmp_path / "out")


def test_what_is_not_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="digits is not made from other files"):
        convert(find_dataset("digits"), tmp_path, tmp_path)
