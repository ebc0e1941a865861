"""`elbowroom checkpoint gc`: it removes what it says, and nothing else."""

from pathlib import Path

import pytest
import torch

from elbowroom.store.checkpoint import Store
from tests.store.checkpoint.holders import save

from .conftest import Command


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_gc_removes_what_it_says(where: Path, command: Command) -> None:
    torch.manual_seed(0)
    save(where, *({"x": torch.randint(0, 256, (9000,)).byte()} for _ in range(6)))
    orphan = where / "packs" / "000000000009-0000000900000000-r0.pack"
    orphan.write_bytes(bytes(50))
    before = {path: path.stat().st_size for path in where.rglob("*-*")}
    tried = command("checkpoint", "gc", where, "--keep-last", 2, "--dry-run", "--json").json
    assert set(where.rglob("*-*")) == before.keys()
    assert [row["step"] for row in tried["removed"]] == [1, 2, 3, 4] and tried["dry_run"]
    found = command("checkpoint", "gc", where, "--json").json
    assert (found["removed"], found["files"], found["bytes"]) == ([], 1, 50)
    assert not orphan.exists() and len(found["kept"]) == 6
    found = command("checkpoint", "gc", where, "--keep-last", 2, "--json").json
    gone = {path: size for path, size in before.items() if not path.exists()}
    assert len([path for path in gone if path.parent.name == "manifests"]) == 4
    assert found["removed"] == tried["removed"] and found["files"] == tried["files"] - 1
    assert found["bytes"] == sum(gone.values()) - 50 == tried["bytes"] - 50 > 0
    assert [row["step"] for row in found["kept"]] == [5, 6]
    assert command("checkpoint", "verify", where, "--all").code == 0
    ended = command("checkpoint", "gc", where, "--keep-last", 1)
    assert ended.code == 0 and "1 checkpoint (step 5) and" in ended.out
    assert "removed, 1 checkpoint kept" in ended.out


def test_gc_keeps_one_each_so_many_steps_and_the_newest(where: Path, command: Command) -> None:
    save(where, *({"x": step} for step in range(7)))
    found = command("checkpoint", "gc", where, "--keep-every", 3, "--json").json
    assert [row["step"] for row in found["kept"]] == [1, 3, 6, 7]
    found = command("checkpoint", "gc", where, "--keep-every", 6, "--keep-last", 2, "--json").json
    assert [row["step"] for row in found["kept"]] == [1, 6, 7]
    assert [name.step for name in Store.open(where).names()] == [1, 6, 7]
