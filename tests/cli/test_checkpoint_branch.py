"""`elbowroom checkpoint branch`: a new run that shares its files with another."""

from pathlib import Path

import torch

from elbowroom.store.checkpoint import Store
from tests.store.checkpoint.holders import save

from .conftest import Command


def test_branch_says_what_it_has_made(tmp_path: Path, command: Command) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    save(old, {"x": torch.arange(9000)}, {"x": torch.arange(9000) + 1})
    ended = command("checkpoint", "branch", old, new, "--what", "model", "--json")
    assert (ended.code, ended.err) == (0, "")
    found = ended.json
    assert (found["step"], found["origin"]["step"], found["tensors"]) == (0, 2, 1)
    assert found["linked_bytes"] > 0 == found["copied_bytes"]
    assert [name.step for name in Store.open(new).names()] == [0]
    ended = command("checkpoint", "branch", old, tmp_path / "next", "--step", 1)
    assert ended.code == 0 and "step 1, all of step 1 of" in ended.out.replace("\n", " ")
    ended = command("checkpoint", "branch", old, new)
    assert ended.code == 2 and "has checkpoints already" in ended.err
    ended = command("checkpoint", "branch", tmp_path / "nothing", new)
    assert ended.code == 2 and "is no store of checkpoints" in ended.err
