"""A store behind torch.distributed.checkpoint, in one process."""

import io
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import LoadPlan, WriteItem
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.store.checkpoint import CheckpointWarning, Store
from elbowroom.store.checkpoint.dcp import Reader, Writer, load, save
from elbowroom.store.checkpoint.local import LocalPlace
from tests.store.checkpoint.runs import start

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def network(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 96), nn.BatchNorm1d(96), nn.Linear(96, 4))
    return model, torch.optim.AdamW(model.parameters(), 1e-2 * (1 + seed), betas=(0.8, 0.9))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for seed in range(steps):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optim": moments}


def fill(folder: Path, *steps: int, **options: Any) -> dict[str, Any]:
    """Checkpoints of a small state, which changes a little from one to the next."""
    state: dict[str, Any] = {}
    for step in steps:
        noise = torch.randn(200, 300, generator=torch.Generator().manual_seed(step))
        state = {"w": noise, "n": step, "deep": {"b": torch.ones(5)}}
        save(state, folder, step=step, **options)
    return state


def blank() -> dict[str, Any]:
    return {"w": torch.zeros(200, 300), "n": -1, "deep": {"b": torch.zeros(5)}}


def packs_of(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (folder / "packs").iterdir()}


def manifest_of(folder: Path) -> Path:
    return max((folder / "manifests").iterdir())


def test_a_training_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    model, optimizer = network(0)
    train(model, optimizer, 3)
    assert save(state_of(model, optimizer), tmp_path, step=3) == 3
    after = train(model, optimizer, 3)
    other, its = network(1)
    state = state_of(other, its)
    assert load(state, tmp_path) == 3
    set_state_dict(other, its, model_state_dict=state["model"], optim_state_dict=state["optim"])
    assert its.param_groups[0]["lr"] == 1e-2
    assert its.param_groups[0]["betas"] == (0.8, 0.9)
    assert train(other, its, 3) == after


def test_every_kind_of_value_comes_back(tmp_path: Path) -> None:
    dense = torch.randn(6, 4, 5)
    tensors = {
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "nothing": torch.empty(0, 3),
        "half": torch.randn(40).to(torch.bfloat16),
        "flags": torch.rand(9) > 0.5,
        "complex": torch.randn(5, dtype=torch.complex64).conj(),
        "turned": dense.permute(2, 0, 1),
        "gaps": dense[:, ::2, 1:4],
        "parameter": nn.Parameter(torch.randn(3)),
    }
    objects: dict[str, Any] = {
        "text": "ü",
        "number": 1 << 70,
        "infinite": float("-inf"),
        "tuple": (1, (torch.ones(3), None)),
        "list": [1, "a", (2.5,)],
        "set": {1, 2},
        "queue": deque([1, 2], 3),
        "bytes": b"\x00\xff",
        "array": np.arange(6, dtype=np.float32).reshape(2, 3),
        "single": np.float64(0.1),
        "dtype": torch.float16,
        "size": torch.Size([2, 3]),
    }
    save({"t": tensors, "o": objects, "l": [torch.ones(2), {"x": 1}]}, tmp_path)
    state: dict[str, Any] = {
        "t": {name: torch.zeros_like(value) for name, value in tensors.items()},
        "o": dict.fromkeys(objects),
        "l": [torch.zeros(2), {"x": 0}],
    }
    load(state, tmp_path)
    for name, value in tensors.items():
        assert torch.equal(state["t"][name], value), name
    assert torch.equal(state["o"]["tuple"][1][0], torch.ones(3))
    assert np.array_equal(state["o"]["array"], objects["array"])
    for name in objects.keys() - {"tuple", "array"}:
        assert type(state["o"][name]) is type(objects[name])
        assert state["o"][name] == objects[name]
    assert torch.equal(state["l"][0], torch.ones(2))
    assert state["l"][1] == {"x": 1}
    # The store can be looked into without torch.distributed.
    store = Store.open(tmp_path)
    flat = store.state(store.manifest(store.names()[-1]))
    assert torch.equal(flat["t.half"], tensors["half"])
    assert flat["o.text"] == "ü"
    assert store.verify(store.names()[-1]) == []


def test_what_has_not_changed_takes_no_bytes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state: dict[str, Any] = {
        "backbone": torch.randn(500, 1000),
        "head": torch.randn(300),
        "step": 1,
    }
    save(state, tmp_path, keep=None)
    first = sum(packs_of(tmp_path).values())
    assert first > 2_000_000
    for step in range(3):
        state["head"] = state["head"] + 1
        state["step"] = step
        # A writer that was never here before finds what the store has.
        torch_dcp.save(state, storage_writer=Writer(tmp_path, keep=None))
    assert sum(packs_of(tmp_path).values()) - first < 3 * 4000
    # A part of a tensor is little as well.
    state["backbone"][100] += 1
    save(state, tmp_path, keep=None)
    assert sum(packs_of(tmp_path).values()) - first < 60_000
    again: dict[str, Any] = {
        "backbone": torch.zeros(500, 1000),
        "head": torch.zeros(300),
        "step": 0,
    }
    load(again, tmp_path)
    assert torch.equal(again["backbone"], state["backbone"])
    assert torch.equal(again["head"], state["head"])


def test_old_checkpoints_go_and_what_newer_ones_need_stays(tmp_path: Path) -> None:
    state = {"frozen": torch.randn(100, 100), "w": torch.randn(50)}
    for step in range(5):
        state["w"] = state["w"] + 1
        save(state, tmp_path, step=step, keep=2)
    store = Store.open(tmp_path)
    assert [name.step for name in store.names()] == [3, 4]
    assert all(store.verify(name) == [] for name in store.names())
    named = {p.name for n in store.names() for part in store.manifest(n).parts for p in part.packs}
    assert packs_of(tmp_path).keys() == named


def test_steps_count_on_or_are_named(tmp_path: Path) -> None:
    state = {"w": torch.zeros(3)}
    assert [save(state, tmp_path) for _ in range(2)] == [0, 1]
    assert save(state, tmp_path, step=40) == 40
    state["w"] += 1
    assert save(state, tmp_path, step=40) == 40  # beside the other, never over it
    assert save(state, tmp_path, keep=None) == 41
    old = {"w": torch.zeros(3)}
    assert load(old, tmp_path, step=40) == 40
    assert torch.equal(old["w"], torch.ones(3))
    with pytest.raises(InvalidArgument, match="no checkpoint of step 5; there are: 1, 40, 40, 41"):
        load(old, tmp_path, step=5)
    with pytest.raises(InvalidArgument, match="step must be"):
        Writer(tmp_path, step=-1)
    with pytest.raises(InvalidArgument, match="is no store"):
        load(old, tmp_path / "elsewhere")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_flipped_bit_is_found(tmp_path: Path, share: float) -> None:
    fill(tmp_path, 1)
    whole = packs_of(tmp_path)
    fill(tmp_path, 2)
    (name,) = packs_of(tmp_path).keys() - whole.keys()
    path = tmp_path / "packs" / name
    data = bytearray(path.read_bytes())
    data[int(share * len(data))] ^= 4
    path.write_bytes(data)
    with pytest.raises(CorruptData, match=r"state\['w'\].*older checkpoints: step 1"):
        load(blank(), tmp_path)
    with pytest.raises(CheckpointException, match=r"CorruptData: state\['w'\]"):
        torch_dcp.load(blank(), storage_reader=Reader(tmp_path))
    state = blank()
    assert load(state, tmp_path, step=1) == state["n"] == 1
    path.unlink()
    with pytest.raises(CorruptData, match="is missing"):
        load(blank(), tmp_path)
    # The next save does not build on what is gone.
    state = fill(tmp_path, 3)
    assert load(blank(), tmp_path) == 3


def test_a_damaged_manifest_is_passed_over(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    path = manifest_of(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    state = blank()
    with pytest.warns(CheckpointWarning, match="went back to step 1.*step 2: .*damaged or cut"):
        assert load(state, tmp_path) == 1
    assert state["n"] == 1
    with pytest.raises(CorruptData, match=r"no checkpoint in .* is whole: step 2"):
        load(state, tmp_path, step=2)


SAVE_AND_DIE = """
import os, signal, sys, torch
from elbowroom.store.checkpoint.dcp import Writer, save

def die(*args, **options): os.kill(os.getpid(), signal.SIGKILL)
Writer.finish = die
save({"w": torch.ones(200, 300), "n": 9, "deep": {"b": torch.ones(5)}}, sys.argv[1])
"""


def test_a_save_that_dies_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    before = packs_of(tmp_path)
    done = subprocess.run([sys.executable, "-c", SAVE_AND_DIE, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(packs_of(tmp_path)) == len(before) + 1
    state = blank()
    assert load(state, tmp_path) == state["n"] == 1
    fill(tmp_path, 2)
    assert len(packs_of(tmp_path)) <= len(before) + 1  # what the dead one has left is gone


def test_a_save_that_fails_hinders_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 1)

    def fail(self: Any, *args: Any) -> None:
        raise ValueError("no plan")

    writer = Writer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(DefaultSavePlanner, "create_global_plan", fail)
        with pytest.raises(CheckpointException) as kept:
            torch_dcp.save(blank(), storage_writer=writer)
    # torch has not told the writer, and the traceback keeps it alive.
    assert "no plan" in str(kept.value)
    fill(tmp_path, 2)
    torch_dcp.save(blank(), storage_writer=writer)
    assert [name.step for name in Store.open(tmp_path).names()] == [1, 2, 3]
    assert len(packs_of(tmp_path)) <= 3


def test_one_run_writes_at_a_time(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    with LocalPlace(tmp_path).lock("writer") as is_held:
        assert is_held
        with pytest.raises(InvalidArgument, match="another run is writing checkpoints"):
            fill(tmp_path, 2)
    fill(tmp_path, 2)


def test_no_file_has_pickled_bytes(tmp_path: Path) -> None:
    signs = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04\x95", b"ctorch", b"_rebuild_tensor", b".pkl")
    state = {"w": torch.ones(50, 100), "o": {"lr": 0.5, "pair": ("a", torch.zeros(2))}}
    data = io.BytesIO()
    torch.save(state, data)
    assert sum(sign in data.getvalue() for sign in signs) > 3
    save(state, tmp_path)
    save(state | {"n": [None, {"x": 1}]}, tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 4
    for path in files:
        assert not [sign for sign in signs if sign in path.read_bytes()], path


def test_what_cannot_be_held_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgument, match=r"state\['a.b'\] is a pathlib.PosixPath, which a checkpoint"
    ):
        save({"a": {"b": tmp_path}}, tmp_path / "store")
    with pytest.raises(InvalidArgument, match=r"s is a torch.sparse_coo tensor"):
        save({"s": torch.eye(3).to_sparse()}, tmp_path / "store")
    assert Store.open(tmp_path / "store").names() == []


def test_missing_names_and_wrong_sizes_are_told(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    with pytest.raises(InvalidArgument, match="Missing key in checkpoint state_dict: other"):
        load({"other": torch.ones(2)}, tmp_path)
    state: dict[str, Any] = {"other": torch.ones(2), "n": 0}
    load(state, tmp_path, planner=DefaultLoadPlanner(allow_partial_load=True))
    assert state["n"] == 1
    with pytest.raises(InvalidArgument, match="Size mismatch"):
        load({"w": torch.ones(2)}, tmp_path)


class HalfPlanner(DefaultSavePlanner):
    """Halves tensors on their way, and makes bytes of objects itself."""

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        made = super().transform_object(write_item, object)
        return made.half() if isinstance(made, Tensor) else made


def test_planners_of_the_user_are_asked(tmp_path: Path) -> None:
    for _ in range(2):
        for n in (1.5, 2.5):
            state: dict[str, Any] = {"w": torch.full((3, 4), n), "n": [n, "x"]}
            save(state, tmp_path, planner=DefaultSavePlanner(enable_plan_caching=True))
            found: dict[str, Any] = {"w": torch.zeros(3, 4), "n": None}
            load(found, tmp_path)
            assert torch.equal(found["w"], state["w"])
            assert found["n"] == state["n"]
    save({"w": torch.full((30,), 0.1), "n": (1, 2)}, tmp_path, planner=HalfPlanner())
    found = {"w": torch.zeros(30), "n": None}
    load(found, tmp_path)
    assert torch.equal(found["w"], torch.full((30,), 0.1).half().float())
    assert found["n"] == (1, 2)
    with pytest.raises(InvalidArgument, match="n is an object that torch loads only by running"):
        save({"n": tmp_path}, tmp_path, planner=HalfPlanner())


def test_what_is_removed_while_it_is_loaded_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 1)
    plain, seen = Reader.set_up_storage_reader, []

    def replace_it(self: Reader, *args: Any, **options: Any) -> None:
        seen.append(self.step)
        if len(seen) == 1:
            fill(tmp_path, 2, keep=1)
        plain(self, *args, **options)

    monkeypatch.setattr(Reader, "set_up_storage_reader", replace_it)
    state = blank()
    assert load(state, tmp_path) == state["n"] == 2
    assert seen == [1, 2]
    plans = [LoadPlan([], storage_data=name) for name in ("a", "b")]
    with pytest.raises(CorruptData, match="ranks have found different checkpoints"):
        Reader(tmp_path).prepare_global_plan(plans)


def test_a_bucket_is_a_place_too() -> None:
    where = "memory://test-dcp/run"
    save({"w": torch.arange(5.0), "n": 3}, where)
    state: dict[str, Any] = {"w": torch.zeros(5), "n": 0}
    assert load(state, where) == 0
    assert state["w"].tolist() == [0, 1, 2, 3, 4]


def test_a_checkpointers_store_is_not_one_of_dcp(tmp_path: Path) -> None:
    with start().checkpointer(tmp_path) as checkpointer:
        checkpointer.save(sync=True)
    with pytest.raises(InvalidArgument, match="were not saved through torch"):
        load(blank(), tmp_path)
    fill(tmp_path, 7)
    assert load(blank(), tmp_path) == 7


def test_a_store_of_dcp_is_not_one_of_a_checkpointer(tmp_path: Path) -> None:
    """Nor is it damaged: going back behind it would lose what it holds."""
    run = start()
    with run.checkpointer(tmp_path) as checkpointer:
        checkpointer.save(sync=True)
    save({"x": torch.ones(2)}, tmp_path, step=7)
    with pytest.raises(InvalidArgument, match=r"step 7 in .* was saved through torch"):
        start().checkpointer(tmp_path)
