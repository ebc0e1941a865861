"""Folders of a store that are links: nothing is read, written or removed through them."""

import os
from pathlib import Path

import pytest
import torch

from elbowroom.cli.main import main
from elbowroom.errors import CorruptData
from elbowroom.store.checkpoint import Checkpointer, CheckpointWarning, Store

from .holders import Holder, save

pytestmark = pytest.mark.usefixtures("one_thread")


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("folder", ["packs", "manifests", "parts"])
def test_a_link_is_not_followed(tmp_path: Path, folder: str) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    states = [{"x": torch.randn(50)} for _ in range(3)]
    save(theirs, *states)
    (theirs / "parts" / "000000000009-0000000900000000-r1.json").write_bytes(b"1")
    save(ours, *states)
    os.rename(ours / folder, tmp_path / "away")
    (ours / folder).symlink_to(theirs / folder)
    before = files_in(theirs)
    for words in (["gc", ours, "--keep-last", "1"], ["verify", ours], ["ls", ours]):
        with pytest.raises(SystemExit) as ended:
            main(["checkpoint", *map(str, words)])
        # A folder of parts is looked into by those alone who clear it.
        assert ended.value.code == 1 or folder == "parts"
        assert files_in(theirs) == before
    with pytest.raises(CorruptData, match=f"{folder} is a link, and a store has folders"):
        Checkpointer(ours, model=Holder(states[0]), handle_signals=False)
    assert files_in(theirs) == before


@pytest.mark.parametrize("folder", ["packs", "manifests"])
def test_one_that_is_exchanged_in_the_middle_of_a_run(tmp_path: Path, folder: str) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    save(theirs, *({"x": torch.randn(50)} for _ in range(3)))
    holder = Holder({"x": torch.randn(50)})
    ck = Checkpointer(ours, model=holder, every=1, keep=1, handle_signals=False)
    ck.step()
    ck.wait()
    os.rename(ours / folder, tmp_path / "away")
    (ours / folder).symlink_to(theirs / folder)
    before = files_in(theirs)
    with pytest.warns(CheckpointWarning, match=f"{folder} is a link"):
        ck.step()
        ck._persister.wait()
        ck.close(save=False)
    assert files_in(theirs) == before


def test_the_store_itself_may_lie_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "here").symlink_to(tmp_path / "disk")
    store = save(tmp_path / "here" / "run", {"x": torch.ones(3)})
    assert store.verify(store.names()[0]) == []
    (tmp_path / "run").symlink_to(tmp_path / "disk" / "run")
    assert [name.step for name in Store.open(tmp_path / "run").names()] == [1]
