"""`elbowroom checkpoint` on what is no store, empty, damaged, read-only or made to do harm."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from elbowroom.store.checkpoint import Checkpointer, Store
from elbowroom.store.checkpoint.local import LocalPlace
from elbowroom.store.checkpoint.state import MOST_DEPTH_READ
from elbowroom.store.checkpoint.system import System
from tests.store.checkpoint.holders import Holder, flip, forge, manifest_path, save

from .conftest import Command, Ending

VERBS = ("ls", "verify", "tree", "gc")  # that need no more than a store
HOSTILE = "\x1b[31m[bold]no[/bold]\x07\r\u202e\x9b2J"
SAFE = r"\x1b[31m[bold]no[/bold]\x07\r\u202e\x9b2J"


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "store"


def check_safe(ended: Ending) -> None:
    """Nothing that is shown commands the terminal."""
    assert not {c for c in ended.out + ended.err if not c.isprintable()} - {"\n"}


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_no_store_is_refused(verb: str, tmp_path: Path, command: Command) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "precious.txt").touch()
    for name in ("missing", "folder"):
        ended = command("checkpoint", verb, tmp_path / name)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err == (
            f"elbowroom: {tmp_path / name} is no store of checkpoints: it has no store.json\n"
        )
    ended = command("checkpoint", verb, tmp_path / "file")
    assert (ended.code, ended.out) == (2, "") and ended.err.count("\n") == 1
    assert str(tmp_path / "file") in ended.err
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["precious.txt"]
    save(tmp_path / "store", {"x": 1})
    (tmp_path / "store" / "store.json").write_text("{}")
    for path in (tmp_path / "store" / "manifests").iterdir():
        path.write_text("{}")
    ended = command("checkpoint", verb, tmp_path / "store")
    assert ended.code in (1, 2) and ended.out == "" and ended.err.count("\n") == 1


def test_empty_stores_have_nothing_to_show(where: Path, tmp_path: Path, command: Command) -> None:
    Checkpointer(where, model=Holder({}), handle_signals=False).close()
    ended = command("checkpoint", "ls", where)
    assert ended.code == 0 and "0 checkpoints in" in ended.out
    assert command("checkpoint", "ls", where, "--json").json["checkpoints"] == []
    assert command("checkpoint", "gc", where, "--keep-last", 1, "--json").json["files"] == 0
    for words in (
        *(("verify",), ("verify", "--all"), ("tree",), ("diff", 1, 2)),
        *(("restore", tmp_path / "x.pt"), ("export", tmp_path / "x.pt")),
    ):
        ended = command("checkpoint", words[0], where, *words[1:])
        assert (ended.code, ended.out) == (2, "")
        assert ended.err == "elbowroom: there is no checkpoint in the store yet\n"


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
def test_stores_that_cannot_be_written_can_be_read(
    error: int, where: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(where, {"x": torch.ones(3)}, {"x": torch.zeros(3)})
    save_file({"x": torch.ones(2)}, tmp_path / "in.safetensors")
    plain = System.open

    def refuse(self: System, path: str, flags: int, mode: int = 0o644) -> int:
        if flags & 3:
            raise OSError(error, "cannot be written", path)
        return plain(self, path, flags, mode)

    monkeypatch.setattr(System, "open", refuse)
    for words in (
        *(("ls",), ("verify", "--all"), ("tree",), ("diff", 1, 2, "--values")),
        *(("restore", tmp_path / "x.pt"), ("export", tmp_path / "y.safetensors")),
    ):
        assert command("checkpoint", words[0], where, *words[1:]).code == 0
    for words in (("gc",), ("import", tmp_path / "in.safetensors")):
        ended = command("checkpoint", words[0], where, *words[1:])
        assert ended.code == 1 and ended.err.count("\n") == 1 and "cannot be written" in ended.err
    assert len(Store.open(where).names()) == 2


def test_nothing_is_removed_while_it_is_read(
    where: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = save(where, {"x": torch.ones(3)}, {"x": torch.zeros(3)})
    seen: list[bool] = []
    read_into = LocalPlace.read_into

    def watch(self: LocalPlace, name: str, offset: int, out: memoryview) -> None:
        if name != "store.json":
            with store.place.lock("readers") as is_free:
                seen.append(is_free)
        read_into(self, name, offset, out)

    monkeypatch.setattr(LocalPlace, "read_into", watch)
    for words in (("ls",), ("verify",), ("tree",), ("diff", 1, 2, "--values")):
        seen.clear()
        assert command("checkpoint", words[0], where, *words[1:]).code == 0
        assert seen and not any(seen)


def test_hostile_names_are_shown_and_not_obeyed(
    where: Path, tmp_path: Path, command: Command
) -> None:
    torch.manual_seed(0)
    states = [{HOSTILE: torch.randn(5000), "v": HOSTILE, 1: {HOSTILE: s}} for s in (1, 2)]
    store = save(where, *states)
    for words in (("tree",), ("diff", 1, 2, "--values"), ("ls",), ("verify",)):
        ended = command("checkpoint", words[0], where, *words[1:])
        assert ended.code == 0
        check_safe(ended)
    assert SAFE in command("checkpoint", "tree", where).out
    found = command("checkpoint", "tree", where, "--json")
    (model,) = [c for c in found.json["ranks"][0]["children"] if c["name"] == "model"]
    assert model["children"][0]["name"] == HOSTILE and "\x1b" not in found.out

    def rename(held: dict[str, Any]) -> None:
        for row in held["parts"][0]["entries"]:
            row[0] = HOSTILE + row[0]

    for name in store.names():
        forge(store, name, rename)
    pack = where / "packs" / f"{store.names()[0]}-r0.pack"
    ended = command("checkpoint", "diff", where, 1, 2)
    check_safe(ended)
    assert SAFE in ended.out
    for at in range(100, pack.stat().st_size, 500):
        flip(pack, at)
    export = ("export", tmp_path / "x.pt", "--step", 1)
    for words in (("verify", "--all"), export, ("diff", 1, 2, "--values")):
        ended = command("checkpoint", words[0], where, *words[1:])
        assert ended.code == 1 and SAFE in ended.out + ended.err
        check_safe(ended)
    ended = command("checkpoint", "export", where, tmp_path / "x.pt", "--what", HOSTILE)
    check_safe(ended)


def test_hostile_manifests_are_told_in_one_sentence(
    where: Path, tmp_path: Path, command: Command
) -> None:
    store = save(where, {"x": torch.ones(3)})
    name = store.names()[0]
    deep: Any = {"tensor": 0}
    for _ in range(MOST_DEPTH_READ - 1):
        deep = {"dict": [["k", deep]]}
    forge(store, name, lambda held: held["parts"][0].update(tree=deep))
    assert command("checkpoint", "tree", where).code == 0
    trees = [{"dict": [["model", {"dict": [[deep]]}]]}, {"tensor": 10**9}, {"what": HOSTILE}]
    for tree in (*trees, {"dict": [[HOSTILE, {HOSTILE: 1}]]}):
        forge(store, name, lambda held, tree=tree: held["parts"][0].update(tree=tree))
        for words in (("tree",), ("diff", 1, 1), ("restore", tmp_path / "x.pt")):
            ended = command("checkpoint", words[0], where, *words[1:])
            assert (ended.code, ended.out) == (1, "") and ended.err.count("\n") == 1
            check_safe(ended)
    held = json.loads(manifest_path(store, name).read_text().splitlines()[0])
    size = held["parts"][0]["packs"][0]["nbytes"]

    def grow(held: dict[str, Any]) -> None:
        part = held["parts"][0]
        # A small pack over and over again: more memory than there is.
        part["contents"][0] = ["0-", size << 40, [[0, 0, size, 1 << 40]], None]
        part["entries"][0][1:4] = ["uint8", [size << 40], [1]]
        part["tree"] = {"dict": [["model", {"tensor": 0}]]}

    forge(store, name, grow)
    for words in (("verify",), ("export", tmp_path / "x.pt")):
        ended = command("checkpoint", words[0], where, *words[1:])
        assert ended.code in (1, 2) and ended.err.count("\n") == 1
    assert not (tmp_path / "x.pt").exists()


def test_gc_keeps_away_from_runs_readers_and_damage(where: Path, command: Command) -> None:
    store = save(where, *({"x": step} for step in range(3)))
    with Checkpointer(where, model=Holder({}), handle_signals=False):
        ended = command("checkpoint", "gc", where, "--keep-last", 1)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith(f"elbowroom: a run is writing checkpoints to {where}: ")
    with store.reading():
        ended = command("checkpoint", "gc", where, "--keep-last", 1)
        assert ended.code == 2 and "someone is reading" in ended.err
    packs = [path for path in (where / "packs").iterdir() if str(store.names()[2]) in path.name]
    saved = [path.rename(path.with_suffix(".away")) for path in packs]
    if packs:
        ended = command("checkpoint", "gc", where, "--keep-last", 1)
        assert ended.code == 1 and "step 3, which would stay, is damaged" in ended.err
    for path in saved:
        path.rename(path.with_suffix(".pack"))
    flip(manifest_path(store, store.names()[1]), 40)
    ended = command("checkpoint", "gc", where)
    assert ended.code == 1 and "step 2, which would stay, is damaged" in ended.err
    assert [name.step for name in store.names()] == [1, 2, 3]
    ended = command("checkpoint", "gc", where, "--keep-last", 1)
    assert ended.code == 0 and [name.step for name in store.names()] == [3]
