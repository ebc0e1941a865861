"""Jets of CMS: what ships, splits by event, and files in the format they come from."""

import sys
from pathlib import Path

import awkward
import numpy as np
import pytest
import torch
import uproot

from elbowroom.codec.archive import Archive
from elbowroom.codec.bound import Bound
from elbowroom.errors import BackendUnavailable, CorruptData, IncompatibleFormat
from elbowroom.science.data import locate
from elbowroom.science.particles.cms import COLUMNS, load_cms_jets, read_nano, split_by_event


def test_shipped_jets_are_lossless_and_plausible() -> None:
    with locate("cms-jets-shipped")["cms_jets.er"].open("rb") as file:
        archive = Archive(file)
        assert set(archive) == {*COLUMNS, "event", "hadronFlavour"}
        assert all(archive.read(name).bound == Bound.lossless() for name in archive)
    train, held_out = load_cms_jets()
    assert len(train) + len(held_out) == 3140
    assert 0.2 < float(train.labels.mean()) < 0.3 and 0.2 < float(held_out.labels.mean()) < 0.3
    momentum = train.inputs[:, COLUMNS.index("pt")]
    assert float(momentum.min()) >= 15 and float(momentum.max()) < 2000
    shares = train.inputs[:, [COLUMNS.index(n) for n in COLUMNS if n.endswith("EF")]].sum(dim=1)
    assert 0.9 < float(shares.median()) <= 1.01


def test_jets_of_an_event_stay_together() -> None:
    events = np.repeat(np.arange(12), 3).astype(np.float32)
    table = {name: events.copy() for name in COLUMNS}
    table |= {"event": events, "hadronFlavour": np.where(events % 2 == 0, 5, 4).astype(np.float32)}
    train, held_out = split_by_event(table)
    assert sorted(set(held_out.inputs[:, 0].tolist())) == [3, 7, 11]
    assert not set(held_out.inputs[:, 0].tolist()) & set(train.inputs[:, 0].tolist())
    assert torch.equal(train.labels, (train.inputs[:, 0] % 2 == 0).float())


def write_nano(path: Path, jets: list[int], *, without: str = "") -> None:
    branches = {}
    for number, name in enumerate((*COLUMNS, "hadronFlavour")):
        rows = [[float(number + jet) for jet in range(count)] for count in jets]
        branches[f"Jet_{name}"] = awkward.Array(rows)
    branches.pop(f"Jet_{without}", None)
    with uproot.recreate(path) as file:
        file["Events"] = branches


def test_nano_files_are_read(tmp_path: Path) -> None:
    write_nano(tmp_path / "a.root", [2, 0, 1])
    write_nano(tmp_path / "b.root", [1, 3])
    table = read_nano(tmp_path / "a.root", tmp_path / "b.root")
    assert table["event"].tolist() == [0, 0, 2, 3, 4, 4, 4]
    assert table["pt"].tolist() == [0, 1, 0, 0, 0, 1, 2]
    assert table["hadronFlavour"].tolist() == [14, 15, 14, 14, 14, 15, 16]
    assert all(column.dtype == np.float32 for column in table.values())


def test_other_files_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_nano(tmp_path / "a.root", [2], without="hadronFlavour")
    with pytest.raises(IncompatibleFormat, match="lacks Jet_hadronFlavour"):
        read_nano(tmp_path / "a.root")
    (tmp_path / "b.root").write_bytes(b"root" + bytes(100))
    with pytest.raises(CorruptData, match=r"b\.root has no readable tree Events"):
        read_nano(tmp_path / "b.root")
    monkeypatch.setitem(sys.modules, "uproot", None)
    with pytest.raises(BackendUnavailable, match="needs the package uproot"):
        read_nano(tmp_path / "a.root")
