"""`elbowroom checkpoint`: what a store has, whether it is whole, and getting it in and out."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from elbowroom.cli import checkpoint_tables
from elbowroom.store.checkpoint import Checkpointer, Store
from tests.store.checkpoint.holders import double_ranks, flip, forge, manifest_path, save
from tests.store.checkpoint.runs import Run, start

from .conftest import Command


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "store"


def train(where: Path, steps: int = 6) -> Run:
    """A store with a checkpoint each second step."""
    run = start()
    with run.checkpointer(where, every=2, keep=None) as checkpointer:
        for _ in range(steps):
            run.step()
            checkpointer.step()
            checkpointer.wait()
    return run


def newest_pack(where: Path) -> Path:
    return max((where / "packs").iterdir())


def test_ls_lists_checkpoints_and_adds_up(where: Path, command: Command) -> None:
    run = train(where)
    ended = command("checkpoint", "ls", where, "--json")
    assert (ended.code, ended.err) == (0, "")
    found = ended.json
    rows = found["checkpoints"]
    assert [row["step"] for row in rows] == [2, 4, 6]
    sizes = [path.stat().st_size for path in where.rglob("*") if path.is_file()]
    assert (found["files"], found["bytes"]) == (len(sizes), sum(sizes))
    assert (found["leftover_files"], found["leftover_bytes"]) == (0, 0)
    tensors = [*run.model.state_dict().values(), torch.get_rng_state()]
    tensors += [v for s in run.optimizer.state_dict()["state"].values() for v in s.values()]
    for row in rows:
        assert row["state_bytes"] == sum(tensor.nbytes for tensor in tensors) + 4 * 624
        assert row["tensors"] == len(tensors) + 1
        assert (row["ranks"], row["readable"], row["problem"]) == (1, True, None)
        assert row["alone_bytes"] > 0 and 0 <= row["age_s"] < 600
    words = command("checkpoint", "ls", where).out
    for word in ("step", "age", "alone", "shared", "readable", f"{rows[2]['alone_bytes']:,}"):
        assert word in words
    assert f"3 checkpoints in {len(sizes)} files of {sum(sizes):,} bytes" in words
    lines = words.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["2", "4", "6"]


def test_ls_tells_leftovers_and_damage(where: Path, command: Command) -> None:
    train(where)
    store = Store.open(where)
    (where / "packs" / "old.pack.part").write_bytes(bytes(99))
    flip(manifest_path(store, store.names()[0]), 9)
    (where / "packs" / f"{store.names()[1]}-r0.pack").unlink()
    found = command("checkpoint", "ls", where, "--json").json
    first, second, third = found["checkpoints"]
    assert not first["readable"] and first["created_s"] is None and first["age_s"] is None
    assert "does not match its own digest" in first["problem"]
    assert second["readable"] and second["problem"].endswith("is missing")
    assert third["problem"] is None or third["problem"].endswith("is missing")
    lost = (where / "packs" / f"{store.names()[0]}-r0.pack").stat().st_size
    left = {(1, 99), (2, 99 + lost)}  # newer ones may need the pack of the first
    assert (found["leftover_files"], found["leftover_bytes"]) in left
    assert found["foreign"] == ["packs/old.pack.part"]
    words = command("checkpoint", "ls", where)
    assert words.code == 0 and "belong to no readable checkpoint" in words.out
    assert "1 file that no run has written, left alone: packs/old.pack.part" in words.out
    assert "does not match its own digest" in words.out and "is missing" in words.out


def test_ages_are_told_whatever_the_clock_said(where: Path, command: Command) -> None:
    assert [checkpoint_tables.say_age(s) for s in (-5, 59, 61, 7200, 3 * 86400)] == (
        ["0 s", "59 s", "1 min", "2 h", "3 d"]
    )
    store = save(where, {"x": 1}, {"x": 2}, {"x": 3})
    for name, created in zip(store.names(), (float("nan"), 10**400, -1e300), strict=True):
        forge(store, name, lambda held, created=created: held.update(created_s=created))
    ended = command("checkpoint", "ls", where, "--json")
    assert [row["age_s"] is None for row in ended.json["checkpoints"]] == [True, True, False]
    assert "NaN" not in ended.out
    assert command("checkpoint", "ls", where).code == 0


def test_verify_finds_nothing_in_what_is_whole(where: Path, command: Command) -> None:
    train(where)
    for words, steps in [((), [6]), (("--step", 4), [4]), (("--all",), [2, 4, 6])]:
        ended = command("checkpoint", "verify", where, *words, "--json")
        assert (ended.code, ended.err) == (0, "")
        assert [row["step"] for row in ended.json["checkpoints"]] == steps
        assert all(row["damage"] == [] and row["bytes"] > 0 for row in ended.json["checkpoints"])
    ended = command("checkpoint", "verify", where)
    assert ended.code == 0 and "whole" in ended.out and "damaged" not in ended.out
    ended = command("checkpoint", "verify", where, "--all", "--step", 2)
    assert ended.code == 2 and "leave one out" in ended.err


def test_verify_lists_all_damage(where: Path, command: Command) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(9000), torch.randn(7000)
    store = save(where, {"a": a, "b": b}, {"a": a, "b": b, "c": torch.randn(6000)}, {"a": a + 1})
    first, _, third = store.names()
    contents = store.manifest(first).parts[0].contents
    for content in contents[:2]:
        flip(where / "packs" / f"{first}-r0.pack", content.extents[0].offset + 40)
    flip(manifest_path(store, third), 30)
    ended = command("checkpoint", "verify", where, "--all", "--json")
    assert ended.code == 1
    rows = {row["step"]: row["damage"] for row in ended.json["checkpoints"]}
    names = [f"state['model']['{key}']" for key in "ab"]
    assert [one["tensor"] for one in rows[1]] == [one["tensor"] for one in rows[2]] == names
    assert all(f"{first}-r0.pack" in one["what"] for one in (*rows[1], *rows[2]))
    assert [one["tensor"] for one in rows[3]] == ["manifest"]
    assert rows[3][0]["file"] == f"manifests/{third}.json"
    assert ended.err == f"elbowroom: {where}: damaged, of 3 checkpoints, step 1, 2, 3\n"
    words = command("checkpoint", "verify", where, "--step", 2)
    assert words.code == 1 and "2 damaged" in words.out
    assert all(name in words.out for name in names) and f"{first}-r0.pack" in words.out


def pretend_terminal(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Have a terminal on which everything is worth a bar; return what bars are told."""
    from rich.progress import Progress

    told: list[tuple[int, int]] = []
    update = Progress.update

    def note(self: Progress, task: Any, *, advance: int, total: int, visible: bool) -> None:
        assert visible
        told.append((advance, total))
        update(self, task, advance=advance, total=total, visible=visible)

    monkeypatch.setattr(Progress, "update", note)
    monkeypatch.setattr(checkpoint_tables, "PROGRESS_FROM_BYTES", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    return told


def test_progress_is_shown_in_bytes(
    where: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = pretend_terminal(monkeypatch)
    save(where, {"x": torch.zeros(1000)}, {"x": torch.ones(1000)})
    total = command("checkpoint", "ls", where, "--json").json["checkpoints"][0]["state_bytes"]
    for words, all_bytes in [
        (("verify", where), total),
        (("verify", where, "--all"), 2 * total),
        (("restore", where, tmp_path / "x.pt"), total),
        (("export", where, tmp_path / "x.safetensors"), 4000),
        (("diff", where, 1, 2, "--values"), total),
    ]:
        terminal.clear()
        assert command("checkpoint", *words).code == 0
        assert sum(nbytes for nbytes, _ in terminal) == all_bytes
        assert {whole for _, whole in terminal} == {all_bytes}
    terminal.clear()
    assert command("checkpoint", "verify", where, "--json").code == 0
    assert terminal == []


def test_diff_counts_and_measures(where: Path, command: Command) -> None:
    run = train(where)
    found = command("checkpoint", "diff", where, 2, 6, "--json").json
    assert (found["before"]["step"], found["after"]["step"]) == (2, 6)
    assert (found["new"], found["gone"]) == (0, 0)
    assert found["changed"] + found["same"] == len(found["tensors"])
    rows = {row["tensor"]: row for row in found["tensors"]}
    step = rows["state['optimizer']['state'][0]['step']"]
    assert (step["status"], step["changed_share"], step["bytes"]) == ("changed", 1.0, 4)
    assert step["after"] == {"dtype": "float32", "shape": []} and step["max_difference"] is None
    values = {row["value"]: (row["before"], row["after"]) for row in found["values"]}
    assert values["state['steps']"] == (2, 6)
    assert values["state['progress']['losses']"] == (run.losses[:2], run.losses)
    found = command("checkpoint", "diff", where, 2, 6, "--values", "--json").json
    step = {row["tensor"]: row for row in found["tensors"]}[step["tensor"]]
    assert (step["max_difference"], step["relative_norm"]) == (4.0, 2.0)
    words = command("checkpoint", "diff", where, 2, 6, "--values").out
    assert f"{found['changed']} changed, 0 new, 0 gone, {found['same']} same" in words
    assert "max |difference|" in words and "state['model']['0.weight']" in words
    same = command("checkpoint", "diff", where, 4, 4)
    assert same.code == 0 and "tensors: 0 changed, 0 new, 0 gone" in same.out
    ended = command("checkpoint", "diff", where, 2, 5)
    assert (ended.code, ended.out) == (2, "") and "no checkpoint of step 5" in ended.err


def test_diff_shows_what_came_went_and_is_damaged(where: Path, command: Command) -> None:
    torch.manual_seed(0)
    x = torch.randn(20_000)
    store = save(where, {"x": x, "old": torch.ones(3)}, {"x": x * 1.5, "new": torch.ones(2, 5)})
    words = command("checkpoint", "diff", where, 1, 2).out.splitlines()
    told = {line.split()[0]: line.split()[1:] for line in words if line.startswith("state[")}
    assert told["state['model']['new']"][:4] == ["new", "float32", "2x5", "40"]
    assert told["state['model']['old']"][0] == "gone"
    assert told["state['model']['x']"] == ["changed", "float32", "20000", "80,000", "100.0%"]
    name = store.names()[1]
    part = store.manifest(name).parts[0]
    leaves = part.contents[part.entries[0].content].leaves
    assert leaves is not None and part.entries[0].where == "state['model']['x']"
    flip(where / "packs" / part.packs[leaves.pack].name, leaves.offset)
    ended = command("checkpoint", "diff", where, 1, 2, "--json")
    assert ended.code == 1 and "1 tensor damaged" in ended.err
    (row,) = [row for row in ended.json["tensors"] if row["problem"]]
    assert row["tensor"] == "state['model']['x']" and row["changed_share"] is None


def test_tree_shows_names_shapes_storage_and_values(where: Path, command: Command) -> None:
    torch.manual_seed(0)
    w, frozen = torch.randn(100, 300), torch.randint(0, 256, (5, 7000), dtype=torch.uint8)
    states = [
        {
            "w": w * (1 + step * 1e-4),
            "frozen": frozen,
            "tied": frozen,
            "e": torch.ones(0),
            "lr": 0.5,
        }
        for step in range(3)
    ]
    save(where, *states)
    ended = command("checkpoint", "tree", where)
    assert (ended.code, ended.err) == (0, "")
    lines = {line.strip("│├└─ ").split(" ")[0]: line for line in ended.out.splitlines()}
    assert "float32 100x300, 120,000 bytes, " in lines["w"] and "on 2 earlier ones" in lines["w"]
    assert "times smaller" in lines["w"]
    assert "uint8 5x7000, 35,000 bytes, raw, shared with an earlier pack" in lines["frozen"]
    assert "the same bytes as state['model']['frozen']" in lines["tied"]
    assert "float32 0, 0 bytes, empty" in lines["e"] and lines["lr"].endswith("lr = 0.5")
    assert "dict of 5" in lines["model"] and lines["steps"].endswith("steps = 3")
    assert "tuple of 625" in ended.out and lines["has_gauss"].endswith("= 0")
    first = command("checkpoint", "tree", where, "--step", 1, "--json").json
    assert first["step"] == 1
    (root,) = first["ranks"]
    (model,) = [child for child in root["children"] if child["name"] == "model"]
    rows = {child["name"]: child for child in model["children"]}
    assert (rows["w"]["dtype"], rows["w"]["shape"], rows["w"]["stride"]) == (
        *("float32", [100, 300]),
        [300, 1],
    )
    assert rows["w"]["depth"] == 0 and rows["w"]["bytes"] == 120_000
    assert rows["frozen"]["held_bytes"] == rows["frozen"]["new_bytes"] == 35_000
    assert rows["frozen"]["ratio"] == 1 and rows["e"]["ratio"] is None
    assert rows["tied"]["same_as"] == "state['model']['frozen']"
    assert rows["lr"] == {"name": "lr", "kind": "value", "value": 0.5}


def test_tree_shows_every_rank(where: Path, command: Command) -> None:
    store = save(where, {"x": torch.ones(2)})
    double_ranks(store, store.names()[0])
    ended = command("checkpoint", "tree", where)
    assert ended.code == 0 and "rank 0" in ended.out and "rank 1" in ended.out
    assert len(command("checkpoint", "tree", where, "--json").json["ranks"]) == 2


def test_restore_writes_everything(where: Path, tmp_path: Path, command: Command) -> None:
    run = train(where)
    target = tmp_path / "x.pt"
    found = command("checkpoint", "restore", where, target, "--step", 4, "--json").json
    whole = torch.load(target, weights_only=True)
    assert whole["steps"] == found["step"] == 4 and whole["progress"]["losses"] == run.losses[:4]
    assert found["bytes"] == target.stat().st_size and found["what"] == "everything"
    assert list(found["replaced"].values()) == ["Tensor"]
    ended = command("checkpoint", "restore", where, target)
    assert (ended.code, ended.out) == (2, "") and "use --force to replace it" in ended.err
    assert torch.load(target, weights_only=True)["steps"] == 4
    ended = command("checkpoint", "restore", where, target, "--force")
    assert ended.code == 0 and "step 6" in ended.out and "is stored as Tensor" in ended.out
    assert torch.load(target, weights_only=True)["steps"] == 6
    ended = command("checkpoint", "restore", where, tmp_path / "x.safetensors")
    assert ended.code == 2 and "name a .pt file" in ended.err


def test_export_and_import_there_and_back(where: Path, tmp_path: Path, command: Command) -> None:
    run = train(where)
    target = tmp_path / "x.safetensors"
    found = command("checkpoint", "export", where, target, "--json").json
    given = run.model.state_dict()
    assert (found["tensors"], found["what"]) == (len(given), "model")
    assert found["tensor_bytes"] == sum(value.nbytes for value in given.values())
    assert all(torch.equal(value, given[name]) for name, value in load_file(target).items())
    ended = command("checkpoint", "import", tmp_path / "new", target, "--step", 7)
    assert (ended.code, ended.err) == (0, "")
    assert (
        ended.out
        == f"{tmp_path / 'new'}: step 7, model of 9 tensors, {found['tensor_bytes']:,} bytes\n"
    )
    again = command(
        "checkpoint", "import", tmp_path / "new", target, "--what", "ema", "--add", "--json"
    ).json
    assert (again["step"], again["tensors"], again["bytes"]) == (0, 9, found["tensor_bytes"])
    rows = command("checkpoint", "ls", tmp_path / "new", "--json").json["checkpoints"]
    assert [row["step"] for row in rows] == [7, 0] and rows[1]["id"] == again["id"]
    model = start(seed=3).model
    with Checkpointer(tmp_path / "new", ema=model, handle_signals=False) as checkpointer:
        assert checkpointer.resumed_from == 0
    assert all(torch.equal(value, given[name]) for name, value in model.state_dict().items())


def test_export_refuses_or_leaves_out_what_is_no_tensor(
    where: Path, tmp_path: Path, command: Command
) -> None:
    train(where, 2)
    words = ("checkpoint", "export", where, tmp_path / "x.safetensors", "--what", "optimizer")
    ended = command(*words)
    assert (ended.code, ended.out) == (2, "")
    assert "'param_groups.0.lr'" in ended.err and ended.err.count("\n") == 1
    ended = command(*words, "--tensors-only")
    assert ended.code == 0 and "left out, since no tensor: 19 values" in ended.out
    assert "state.0.exp_avg" in load_file(tmp_path / "x.safetensors")
    ended = command("checkpoint", "export", where, tmp_path / "x.pt", "--what", "nothing")
    assert ended.code == 2 and "has no 'nothing'; it has: steps, model, optimizer" in ended.err


def test_damage_is_told_in_one_sentence(where: Path, tmp_path: Path, command: Command) -> None:
    save(where, {"x": torch.arange(9000.0)})
    flip(newest_pack(where), 200)
    for words in (("restore", where, tmp_path / "x.pt"), ("export", where, tmp_path / "y.pt")):
        ended = command("checkpoint", *words)
        assert (ended.code, ended.out) == (1, "") and ended.err.count("\n") == 1
        assert "state['model']['x']" in ended.err and newest_pack(where).name in ended.err
    (tmp_path / "bad.pt").write_text("no")
    ended = command("checkpoint", "import", where, tmp_path / "bad.pt")
    assert (ended.code, ended.out) == (1, "") and "or a damaged one" in ended.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.pt", "store"]


def test_an_address_does_for_a_folder(tmp_path: Path, command: Command) -> None:
    pytest.importorskip("fsspec")
    save_file({"x": torch.ones(5)}, tmp_path / "x.safetensors")
    address = "memory://elbowroom/test_checkpoint"
    for step in (1, 2):
        assert (
            command(
                *("checkpoint", "import", address, tmp_path / "x.safetensors"),
                *("--step", step, "--add"),
            ).code
            == 0
        )
    assert command("checkpoint", "verify", address, "--all").code == 0
    found = command("checkpoint", "gc", address, "--keep-last", 1, "--json").json
    assert [row["step"] for row in found["removed"]] == [1]
    assert command("checkpoint", "export", address, tmp_path / "y.safetensors").code == 0
    assert torch.equal(load_file(tmp_path / "y.safetensors")["x"], torch.ones(5))
    assert [
        row["step"] for row in command("checkpoint", "ls", address, "--json").json["checkpoints"]
    ] == [2]


def test_usage_errors_and_help(where: Path, command: Command) -> None:
    save(where, {"x": 1})
    for words in (("gc", where, "--keep-last", 0), ("tree", where, "--step", -1), ("diff", where)):
        assert command("checkpoint", *words).code == 2
    shown = command("checkpoint", "--help").out
    for verb in ("ls", "verify", "diff", "tree", "restore", "export", "import", "gc"):
        assert verb in shown
        assert "--json" in command("checkpoint", verb, "--help").out
