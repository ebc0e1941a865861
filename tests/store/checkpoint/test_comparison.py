"""What a checkpoint holds alone adds up to the disk, and what differs is found and measured."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.store.checkpoint import Checkpointer, Store
from elbowroom.store.checkpoint.comparison import (
    Change,
    Comparison,
    compare,
    find_checkpoint,
    survey,
)
from elbowroom.store.checkpoint.digests import LEAF_BYTES
from elbowroom.store.checkpoint.reading import PartReader

from .holders import Holder, double_ranks, flip, forge, manifest_path, save

LEAF_ITEMS = LEAF_BYTES // 4


def noise(leaves: int, seed: int = 0) -> Tensor:
    """Floats that nothing makes smaller, of so many leaves."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (leaves * LEAF_ITEMS,), generator=generator).int()


def diff(store: Store, before: int, after: int, **options: Any) -> Comparison:
    manifests = [store.manifest(find_checkpoint(store, step)) for step in (before, after)]
    return compare(store, *manifests, **options)


def of(found: Comparison, name: str) -> Change:
    (change,) = [c for c in found.tensors if c.where == f"state['model']['{name}']"]
    return change


def test_the_newest_of_a_step_is_found(tmp_path: Path) -> None:
    holder = Holder({"x": 0})
    with Checkpointer(tmp_path, model=holder, keep=None, handle_signals=False) as checkpointer:
        checkpointer.save(sync=True)
        checkpointer.save(sync=True)
    store = Store.open(tmp_path)
    first, second = store.names()
    assert first.step == second.step == 0 and first != second
    assert find_checkpoint(store) == find_checkpoint(store, 0) == second
    with pytest.raises(InvalidArgument, match="no checkpoint of step 3; there are: 0, 0"):
        find_checkpoint(store, 3)
    Checkpointer(tmp_path / "empty", model=holder, handle_signals=False).close()
    with pytest.raises(InvalidArgument, match="no checkpoint in the store yet"):
        find_checkpoint(Store.open(tmp_path / "empty"))


def test_bytes_held_alone_and_shared_add_up_to_the_disk(tmp_path: Path) -> None:
    frozen = noise(8)
    store = save(tmp_path, *({"frozen": frozen, "x": noise(2, seed)} for seed in (1, 2, 3)))
    found = survey(store)
    sizes = {path.name: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    assert (found.files, found.nbytes) == (len(sizes), sum(sizes.values()))
    assert (found.leftover_files, found.leftover_bytes) == (0, 0)
    names = store.names()
    assert [holding.name for holding in found.holdings] == names
    first, second, third = found.holdings
    packs = [f"{name}-r0.pack" for name in names]
    own = [sizes[f"{name}.json"] for name in names]
    # All need the first pack; nobody else needs the packs of the second and the third.
    assert (first.alone_bytes, first.shared_bytes) == (own[0], sizes[packs[0]])
    assert (second.alone_bytes, third.alone_bytes) == (
        own[1] + sizes[packs[1]],
        own[2] + sizes[packs[2]],
    )
    assert second.shared_bytes == third.shared_bytes == sizes[packs[0]] > 8 * LEAF_BYTES
    alone = sum(holding.alone_bytes for holding in found.holdings)
    marks = sum(size for name, size in sizes.items() if "-" not in name)
    assert alone + first.shared_bytes + marks == found.nbytes
    for holding in found.holdings:
        manifest = store.manifest(holding.name)
        assert holding.tensors == len(manifest.parts[0].entries) and holding.ranks == 1
        assert (
            holding.state_bytes
            == sum(t.nbytes for t in (frozen, noise(2), torch.get_rng_state())) + 4 * 624
        )
        assert holding.created_s == manifest.created_s and holding.problem is None


def test_leftovers_and_what_is_visibly_broken_are_counted(tmp_path: Path) -> None:
    store = save(tmp_path, *({"x": noise(1, seed)} for seed in range(4)))
    names = store.names()
    (tmp_path / "packs" / "000000000009-0000000900000000-r0.pack.part").write_bytes(bytes(70))
    (tmp_path / "parts" / "something.json").write_bytes(bytes(7))
    (tmp_path / "packs" / "folder").mkdir()
    (tmp_path / "packs" / f"{names[0]}-r0.pack").unlink()
    flip(manifest_path(store, names[1]), 50)
    pack = tmp_path / "packs" / f"{names[2]}-r0.pack"
    pack.write_bytes(pack.read_bytes()[:-1])
    found = survey(store)
    first, second, third, last = found.holdings
    assert first.is_readable and first.problem == f"packs/{names[0]}-r0.pack is missing"
    assert not second.is_readable and "does not match its own digest" in str(second.problem)
    assert math.isnan(second.created_s) and second.tensors == 0
    assert second.alone_bytes == manifest_path(store, names[1]).stat().st_size
    assert third.problem == f"packs/{names[2]}-r0.pack is cut short or replaced"
    assert last.problem is None
    # With its manifest unreadable, nobody is known to need the second one's pack.
    lost = (tmp_path / "packs" / f"{names[1]}-r0.pack").stat().st_size
    assert (found.leftover_files, found.leftover_bytes) == (3, 77 + lost)


def test_changed_leaves_are_counted_without_reading_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = noise(16)
    y = x.clone()
    y[[5, LEAF_ITEMS + 1, LEAF_ITEMS + 2]] += 1  # two leaves of sixteen
    a = {"x": x, "same": noise(2), "goes": torch.ones(3), "kind": torch.ones(4), "all": noise(3)}
    b = {"x": y, "same": noise(2), "comes": torch.ones(9), "kind": torch.ones(4).half()}
    store = save(tmp_path, a, {**b, "all": noise(3, seed=1)})

    def refuse(*_: object) -> Tensor:
        raise AssertionError("no tensor must be read")

    monkeypatch.setattr(PartReader, "tensor", refuse)
    monkeypatch.setattr(PartReader, "read", refuse)
    found = diff(store, 1, 2)
    assert (of(found, "x").status, of(found, "x").share) == ("changed", 2 / 16)
    assert of(found, "x").nbytes == 16 * LEAF_BYTES
    assert (of(found, "all").status, of(found, "all").share) == ("changed", 1.0)
    assert (of(found, "same").status, of(found, "same").share) == ("same", 0.0)
    assert (of(found, "goes").status, of(found, "goes").after) == ("gone", None)
    assert (of(found, "comes").status, of(found, "comes").before) == ("new", None)
    kind = of(found, "kind")
    assert kind.before is not None and kind.after is not None and kind.status == "changed"
    assert (kind.before.dtype, kind.after.dtype) == ("float32", "float16")
    assert (found.count("new"), found.count("gone")) == (1, 1)
    assert [c.where.split("'")[3] for c in found.tensors if "model" in c.where] == (
        ["all", "kind", "x", "comes", "goes", "same"]
    )
    back = diff(store, 2, 1)
    assert of(back, "goes").status == "new" and of(back, "x").share == 2 / 16


def test_the_same_bytes_in_another_shape_are_a_change(tmp_path: Path) -> None:
    x = noise(2).reshape(2, -1)
    store = save(tmp_path, {"x": x}, {"x": x.reshape(4, -1)})
    change = of(diff(store, 1, 2), "x")
    assert (change.status, change.share) == ("changed", 0.0)
    assert change.after is not None and change.after.shape == (4, x.numel() // 4)


def test_a_checkpoint_is_the_same_as_itself(tmp_path: Path) -> None:
    store = save(tmp_path, {"x": noise(2), "lr": 0.1})
    found = diff(store, 1, 1, values=True)
    assert {change.status for change in found.tensors} == {"same"} and found.values == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_differences_of_values_are_measured(tmp_path: Path, dtype: torch.dtype) -> None:
    x = torch.linspace(-2, 2, 12).reshape(3, 4).to(dtype)
    y = (x.double() * 1.25 + 0.5).to(dtype)
    store = save(
        tmp_path, {"x": x, "n": torch.ones(2).int()}, {"x": y.t().contiguous().t(), "n": 3}
    )
    change = of(diff(store, 1, 2, values=True), "x")
    gap = y.double() - x.double()
    assert change.most_difference == float(gap.abs().max()) > 0
    expected = float(gap.norm() / x.double().norm())
    assert change.relative_norm == pytest.approx(expected, rel=1e-12)
    assert change.nonfinite_items == 0
    assert of(diff(store, 1, 2), "x").most_difference is None


def test_items_that_are_not_finite_are_counted_apart(tmp_path: Path) -> None:
    nan, inf = math.nan, math.inf
    x = torch.tensor([1.0, nan, inf, 2.0, inf, 4.0])
    y = torch.tensor([1.5, nan, inf, nan, -inf, 4.0])
    store = save(tmp_path, {"x": x, "zero": torch.zeros(2)}, {"x": y, "zero": torch.ones(2)})
    found = diff(store, 1, 2, values=True)
    change = of(found, "x")
    assert (change.most_difference, change.nonfinite_items) == (0.5, 2)
    assert change.relative_norm == pytest.approx(0.5 / math.sqrt(17))
    zero = of(found, "zero")
    assert (zero.most_difference, zero.relative_norm) == (1.0, None)


def test_what_is_no_tensor_is_compared_too(tmp_path: Path) -> None:
    a = {"lr": 0.1, "n": 1, "kept": [1, math.nan], "goes": "x", "deep": {"list": [1, {"a": 2}]}}
    b = {"lr": 0.2, "n": 1.0, "kept": [1, math.nan], "comes": None, "deep": {"list": [1, {"a": 3}]}}
    found = diff(save(tmp_path, a, b), 1, 2)
    told = {c.where.removeprefix("state['model']"): c for c in found.values if "model" in c.where}
    assert {where: (c.status, c.before, c.after) for where, c in told.items()} == {
        "['lr']": ("changed", 0.1, 0.2),
        "['n']": ("changed", 1, 1.0),
        "['goes']": ("gone", "x", None),
        "['comes']": ("new", None, None),
        "['deep']['list'][1]['a']": ("changed", 2, 3),
    }
    assert [c.where for c in found.values if "model" not in c.where] == ["state['steps']"]


def test_ranks_that_came_or_went_are_told(tmp_path: Path) -> None:
    store = save(tmp_path, {"x": noise(1), "n": 1})
    double_ranks(store, store.names()[0])
    found = diff(store, 1, 2)
    count = len(store.manifest(store.names()[0]).parts[0].entries)
    assert (found.count("same"), found.count("new")) == (count, count)
    assert {change.rank for change in found.tensors if change.status == "new"} == {1}
    assert all(change.rank == 1 and change.status == "new" for change in found.values)
    assert diff(store, 2, 1).count("gone") == count


def test_damage_is_told_and_the_rest_compared(tmp_path: Path) -> None:
    store = save(tmp_path, *({"x": noise(4, seed), "y": noise(3, seed)} for seed in (1, 2)))
    name = store.names()[1]
    content = store.manifest(name).parts[0].contents[0]
    assert content.leaves is not None
    pack = tmp_path / "packs" / f"{name}-r0.pack"
    flip(pack, content.leaves.offset)
    found = diff(store, 1, 2, values=True)
    assert of(found, "x").share is None
    assert f"packs/{name}-r0.pack" in str(of(found, "x").problem)
    assert (of(found, "y").share, of(found, "y").problem) == (1.0, None)
    flip(pack, content.leaves.offset)
    flip(pack, content.extents[0].offset)
    assert of(diff(store, 1, 2), "x").problem is None  # the data were not looked at
    assert "is damaged" in str(of(diff(store, 1, 2, values=True), "x").problem)


def test_a_tree_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    store = save(tmp_path, {"x": noise(1)}, {"x": noise(1)})
    for tree in ({"dict": [[1]]}, {"dict": 3}, {"tensor": 99}, {"tensor": "x"}, {"what": 1}):

        def change(held: dict[str, Any], tree: Any = tree) -> None:
            held["parts"][0]["tree"] = tree

        forge(store, store.names()[0], change)
        with pytest.raises(CorruptData, match="the checkpoint's state"):
            diff(store, 1, 2)
