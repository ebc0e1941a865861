"""A new run from a checkpoint of another, and what the two have in common on the disk."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.store.checkpoint import Checkpointer, Store
from elbowroom.store.checkpoint.branching import branch

from .holders import Holder, forge, save
from .runs import losses_of, start


def files_in(where: Path) -> set[int]:
    return {path.stat().st_ino for path in (where / "packs").iterdir()}


def train(where: Path, steps: int) -> list[float]:
    run = start(seed=steps)
    with run.checkpointer(where, every=2, keep=None) as checkpointer:
        while len(run.losses) < steps:
            run.step()
            checkpointer.step()
            checkpointer.wait()
    return run.losses


def test_a_branch_goes_on_as_the_run_did(tmp_path: Path) -> None:
    run = start()
    with run.checkpointer(tmp_path / "old", every=2, keep=None) as checkpointer:
        for _ in range(6):
            run.step()
            checkpointer.step()
            checkpointer.wait()
    done = branch(tmp_path / "old", tmp_path / "new", step=4)
    assert (done.origin.step, done.name.step, done.copied_bytes) == (4, 4, 0)
    assert files_in(tmp_path / "new") < files_in(tmp_path / "old")
    assert train(tmp_path / "new", 9) == losses_of(9)
    shutil.rmtree(tmp_path / "old")
    store = Store.open(tmp_path / "new")
    assert all(store.verify(name) == [] for name in store.names())


def test_what_another_run_keeps_is_not_written_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    frozen = {"w": torch.randn(300, 300)}
    state: dict[str, Any] = {
        "model": Holder(frozen),
        "moments": Holder({"m": torch.randn(900, 300)}),
    }
    with Checkpointer(tmp_path / "old", **state) as checkpointer:
        checkpointer.save(sync=True)
    done = branch(tmp_path / "old", tmp_path / "new", what="model")
    assert (done.name.step, done.tensors) == (0, 1)
    model = Holder(None)
    with Checkpointer(tmp_path / "new", model=model, every=1, keep=1) as checkpointer:
        assert torch.equal(model.state["w"], frozen["w"])
        new = tmp_path / "new" / "packs"
        for is_kept in (True, False):
            if not is_kept:
                shutil.rmtree(tmp_path / "old")
            checkpointer.step()
            checkpointer.wait()
            written = [path for path in new.iterdir() if path.stat().st_nlink == 1]
            is_large = [path.stat().st_size > frozen["w"].nbytes for path in written]
            # Most of the old pack is of no use here: once nobody else has it, it goes.
            assert any(is_large) != is_kept
            assert sum(path.stat().st_size for path in new.iterdir()) < 6 * frozen["w"].nbytes
        store = Store.open(tmp_path / "new")
        assert store.verify(store.names()[-1]) == []
        assert sum(path.stat().st_size for path in new.iterdir()) < 2 * frozen["w"].nbytes


def test_where_there_are_no_links_files_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "old", {"x": torch.arange(9000)})

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr("elbowroom.store.checkpoint.system.System.link", refuse)
    done = branch(tmp_path / "old", tmp_path / "new")
    assert done.linked_bytes == 0 < done.copied_bytes
    assert not files_in(tmp_path / "new") & files_in(tmp_path / "old")
    store = Store.open(tmp_path / "new")
    assert store.verify(store.names()[0]) == []


def test_what_cannot_be_branched_is_told_and_leaves_no_checkpoint(tmp_path: Path) -> None:
    store = save(tmp_path / "old", {"x": torch.arange(9000)})
    with pytest.raises(InvalidArgument, match="has no 'ema'; it has: steps, model"):
        branch(tmp_path / "old", tmp_path / "new", what="ema")
    with pytest.raises(InvalidArgument, match="has checkpoints already, the last of step 1"):
        branch(tmp_path / "old", save_another(tmp_path))
    with pytest.raises(InvalidArgument, match="there is no checkpoint of step 8"):
        branch(tmp_path / "old", tmp_path / "new", step=8)

    def ask_for_more(held: dict[str, Any]) -> None:
        held["parts"][0]["tree"]["dict"][1][1] = {"dict": [["x", {"tensor": 99}]]}

    forge(store, store.names()[0], ask_for_more)
    with pytest.raises(CorruptData, match="asks for a tensor 99"):
        branch(tmp_path / "old", tmp_path / "new", what="model")
    assert not (tmp_path / "new").exists()


def save_another(folder: Path) -> Path:
    save(folder / "other", {"x": 1})
    return folder / "other"
