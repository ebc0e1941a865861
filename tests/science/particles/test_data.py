"""Events in files: HIGGS, top tagging and the arrays of the data folder."""

import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from elbowroom.errors import (
    BackendUnavailable,
    CorruptData,
    ElbowroomError,
    IncompatibleFormat,
    InvalidArgument,
    MissingData,
)
from elbowroom.science.particles import data
from elbowroom.science.particles.data import (
    Labelled,
    load_higgs,
    load_higgsml,
    load_jet_images,
    read_higgs_csv,
    read_top_tagging,
)
from elbowroom.science.particles.training import Events

from .event_files import make_jets, write_higgs, write_top_tagging


@pytest.mark.parametrize("name", ["HIGGS.csv", "HIGGS.csv.gz"])
def test_higgs_is_read_as_published(name: str, tmp_path: Path) -> None:
    table = write_higgs(tmp_path / name, 12)
    rows = read_higgs_csv(tmp_path / name)
    assert np.array_equal(rows.inputs.numpy(), table[:, 1:])
    assert np.array_equal(rows.labels.numpy(), table[:, 0])
    assert len(read_higgs_csv(tmp_path / name, rows=5)) == 5


def test_other_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("1,2,3\n")
    with pytest.raises(IncompatibleFormat, match="a label and 28 columns, got 3 in all"):
        read_higgs_csv(path)
    path.write_text("label,a,b\n1,2,3\n")
    with pytest.raises(CorruptData, match="is not the HIGGS table"):
        read_higgs_csv(path)
    write_higgs(tmp_path / "y.csv.gz", 50)
    whole = (tmp_path / "y.csv.gz").read_bytes()
    (tmp_path / "y.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptData, match="ends too early"):
        read_higgs_csv(tmp_path / "y.csv.gz")


def test_damaged_and_missing_tables_are_told(tmp_path: Path) -> None:
    path = tmp_path / "HIGGS.csv.gz"
    with pytest.raises(MissingData, match=r"HIGGS\.csv\.gz is not there"):
        read_higgs_csv(path)
    with pytest.raises(InvalidArgument, match="is a folder, and a file is needed"):
        read_higgs_csv(tmp_path)
    write_higgs(path, 200)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(CorruptData, match="is damaged"):
        read_higgs_csv(path)
    path.write_bytes(b"1,2,3\n")
    with pytest.raises(CorruptData, match=r"(?i)not a gzipped file"):
        read_higgs_csv(path)
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(IncompatibleFormat, match="row for every event, and has none"):
        read_higgs_csv(tmp_path / "empty.csv")
    with pytest.raises(InvalidArgument, match="rows must be at least 1"):
        read_higgs_csv(tmp_path / "empty.csv", rows=0)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        (0, "7", "labels 0 and 1, got 7 in line 2"),
        (0, "nan", "labels 0 and 1, got nan in line 2"),
        (3, "inf", "got an infinite one in line 2, column 4"),
    ],
)
def test_bad_values_of_higgs_are_found(column: int, value: str, said: str, tmp_path: Path) -> None:
    rows = [["1"] * 29, ["0"] * 29]
    rows[1][column] = value
    (tmp_path / "x.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    with pytest.raises(ElbowroomError, match=said):
        read_higgs_csv(tmp_path / "x.csv")


@pytest.mark.parametrize("share", [0.0, 1.0, 1.5, -1.0])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(InvalidArgument, match="held_out_share must be above 0 and below 1"):
        Events(data="csv", held_out_share=share)


def test_top_tagging_is_read_as_published(tmp_path: Path) -> None:
    momenta, labels = make_jets(6)
    write_top_tagging(tmp_path / "train.h5", momenta, labels)
    jets = read_top_tagging(tmp_path / "train.h5")
    assert np.array_equal(jets.inputs.numpy(), momenta)
    assert jets.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert len(read_top_tagging(tmp_path / "train.h5", jets=2)) == 2


def test_other_hdf5_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["jets"] = np.zeros(3)
    with pytest.raises(IncompatibleFormat, match="must hold the table /table/table"):
        read_top_tagging(path)
    write_top_tagging(path, *make_jets(4))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(CorruptData, match="cannot be read"):
        read_top_tagging(path)
    with pytest.raises(MissingData, match=r"nowhere\.h5 is not there"):
        read_top_tagging(tmp_path / "nowhere.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(BackendUnavailable, match="needs the package h5py"):
        read_top_tagging(path)


@pytest.mark.parametrize(
    ("momenta", "labels", "said"),
    [
        (("<f4", 804), ("<i8", 1), "values_block_1 of .* must hold ttv and is_signal_new"),
        (("<f4", 804), ("<i8", ()), "values_block_1 of .* must hold ttv"),
        (("<f4", 80), ("<i8", 2), "values_block_0 of .* must hold 200 four-vectors"),
        (("S4", 804), ("<i8", 2), "values_block_0 of .* must hold 200 four-vectors"),
    ],
)
def test_blocks_of_other_shapes_are_named(
    momenta: Any, labels: Any, said: str, tmp_path: Path
) -> None:
    kind = np.dtype([("values_block_0", *momenta), ("values_block_1", *labels)])
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["table/table"] = np.zeros(4, kind)
    with pytest.raises(IncompatibleFormat, match=said):
        read_top_tagging(tmp_path / "x.h5")


def test_bad_jets_are_found(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_group("table/table")
    with pytest.raises(IncompatibleFormat, match="must hold the table /table/table"):
        read_top_tagging(path)
    momenta, labels = make_jets(3)
    write_top_tagging(path, momenta[:0], labels[:0])
    with pytest.raises(IncompatibleFormat, match="row for every jet, and has none"):
        read_top_tagging(path)
    write_top_tagging(path, momenta, labels + 1)
    with pytest.raises(IncompatibleFormat, match="labels 0 and 1, got 2 in values_block_1, row 1"):
        read_top_tagging(path)
    momenta[2, 5, 1] = np.nan
    write_top_tagging(path, momenta, labels)
    with pytest.raises(CorruptData, match="finite momenta, got one of row 2 that is not"):
        read_top_tagging(path)
    with pytest.raises(InvalidArgument, match="jets must be at least 1"):
        read_top_tagging(path, jets=0)


def test_a_split_is_the_same_every_time_and_overlaps_nowhere() -> None:
    rows = Labelled(inputs=torch.arange(50.0)[:, None], labels=torch.zeros(50))
    train, held_out = rows.split(10)
    assert torch.equal(held_out.inputs, rows.split(10)[1].inputs)
    assert sorted([*train.inputs.flatten().tolist(), *held_out.inputs.flatten().tolist()]) == list(
        range(50)
    )
    assert held_out.inputs.flatten().tolist() != list(range(10))


def test_arrays_of_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    labels = (np.arange(2500) % 2).astype(np.uint8)
    rows = rng.random((2500, 3)).astype(np.float32)
    rows[0, 0] = -999
    np.savez(tmp_path / "a.npz", x=rows, y=labels)
    np.savez(tmp_path / "b.npz", x=rng.random((2500, 4, 4)), y=labels)
    np.savez(tmp_path / "c.npz", x_train=rows, y_train=labels, x_test=rows[:9], y_test=labels[:9])
    paths = {
        "higgsml_atlas_10k.npz": tmp_path / "a.npz",
        "jet_images_top_vs_qcd.npz": tmp_path / "b.npz",
        "higgs_uci_7500.npz": tmp_path / "c.npz",
    }
    monkeypatch.setattr(data, "locate", lambda name, folder: paths)
    train, held_out = load_higgsml()
    assert (len(train), len(held_out)) == (502, 1998)
    assert int(train.inputs.isnan().sum() + held_out.inputs.isnan().sum()) == 1
    train, held_out = load_jet_images()
    assert held_out.inputs.shape == (1027, 1, 4, 4) and held_out.inputs.dtype == torch.float32
    train, held_out = load_higgs()
    assert (len(train), len(held_out)) == (2500, 9)


@pytest.mark.parametrize("load", [load_jet_images, load_higgs, load_higgsml])
def test_missing_arrays_say_where_they_come_from(load: object) -> None:
    with pytest.raises(MissingData, match="take it from GitHub"):
        load()  # type: ignore[operator]
