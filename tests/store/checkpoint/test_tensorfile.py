"""Files of other programs are there whole or not at all, and nothing that is read runs."""

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.store.checkpoint import Store, tensorfile
from elbowroom.store.checkpoint.exchange import export_file, import_file

from .holders import save


def test_what_is_there_is_replaced_only_when_asked_and_never_by_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, target = tmp_path / "store", tmp_path / "x.pt"
    save(store, {"x": torch.ones(3)})
    target.write_text("precious")
    with pytest.raises(InvalidArgument, match="is there already"):
        export_file(store, target)
    with pytest.raises(InvalidArgument, match=r"the folder of .* is not there"):
        export_file(store, tmp_path / "no" / "x.pt")
    (tmp_path / "folder.pt").mkdir()
    with pytest.raises(InvalidArgument, match="no plain file"):
        export_file(store, tmp_path / "folder.pt", replace=True)
    real = torch.save

    def save_wrongly(held: Any, path: Path) -> None:
        real({"x": held["x"] + 1}, path)

    def save_by_half(held: Any, path: Path) -> None:
        real(held, path)
        os.truncate(path, path.stat().st_size // 2)

    def fail(held: Any, path: Path) -> None:
        path.write_text("beg")
        raise OSError(28, "No space left on device")

    for broken, error, said in [
        (save_wrongly, CorruptData, "does not hold what was written"),
        (save_by_half, InvalidArgument, "could not be read"),
        (fail, OSError, "No space"),
    ]:
        monkeypatch.setattr(tensorfile.torch, "save", broken)
        with pytest.raises(error, match=said):
            export_file(store, target, replace=True)
        assert target.read_text() == "precious"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.pt", "store", "x.pt"]
    monkeypatch.setattr(tensorfile.torch, "save", real)
    export_file(store, target, replace=True)
    assert torch.equal(torch.load(target, weights_only=True)["x"], torch.ones(3))


class Command:
    """What a hostile file would have run."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def test_nothing_that_is_imported_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"x": torch.ones(2), "y": Command()}, "x.pt")
    with pytest.raises(InvalidArgument, match=r"holds a posix.mkdir, and only tensors"):
        import_file("store", "x.pt")
    torch.save(nn.Linear(2, 2), "x.pt")
    with pytest.raises(InvalidArgument, match=r"holds a torch.nn.modules.linear.Linear"):
        import_file("store", "x.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt"]


def test_files_that_are_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    for ending in ("pt", "safetensors"):
        path = tmp_path / f"x.{ending}"
        with pytest.raises(InvalidArgument, match="is not there"):
            import_file(store, path)
        for data in (b"", b"hello", b"PK\x05\x06" + bytes(18), np.random.default_rng(0).bytes(100)):
            path.write_bytes(data)
            with pytest.raises(CorruptData, match="or a damaged one"):
                import_file(store, path)
    torch.save({"a": 1}, tmp_path / "x.pt")
    with pytest.raises(InvalidArgument, match="holds no tensor"):
        import_file(store, tmp_path / "x.pt")
    torch.save({"a": torch.zeros(1).expand(10**14)}, tmp_path / "x.pt")
    with pytest.raises(InvalidArgument, match="400,000,000,"):
        import_file(store, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", bytes(1 << 24))
    monkeypatch.setattr(tensorfile, "available_bytes", lambda: 1 << 23)
    assert (tmp_path / "x.pt").stat().st_size < 1 << 16
    with pytest.raises(InvalidArgument, match="16,777,216 bytes, more than"):
        import_file(store, tmp_path / "x.pt")
    assert not store.exists()


@pytest.mark.parametrize(
    "options", [{"_use_new_zipfile_serialization": False}, {"pickle_protocol": 3}], ids=str
)
def test_a_file_of_another_torch_is_read_without_a_word(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    torch.save({"x": torch.ones(2)}, tmp_path / "x.pt", **options)
    name = import_file(tmp_path / "store", tmp_path / "x.pt")
    store = Store.open(tmp_path / "store")
    assert torch.equal(store.state(store.manifest(name))["model"]["x"], torch.ones(2))
