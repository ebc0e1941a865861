"""Copies of a state for saves that go on beside the training."""

import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from torch import nn
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import AsyncStager

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint import Store
from elbowroom.store.checkpoint.dcp import Stager, Writer, load

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def state() -> dict[str, Any]:
    weights = torch.randn(64, 64)
    return {
        "model": OrderedDict(w=weights, tied=weights, turned=weights.t()[3:9]),
        "list": [torch.arange(3), {"n": 1}],
        "lr": 0.5,
    }


def start_save(
    held: dict[str, Any], folder: Path, stager: Stager | None, **options: Any
) -> Future[Any]:
    writer = Writer(folder, keep=None)
    future = torch_dcp.async_save(held, storage_writer=writer, async_stager=stager, **options)
    assert isinstance(future, Future)
    return future


def test_a_copy_is_the_same_and_stays_so() -> None:
    stager = Stager()
    assert isinstance(stager, AsyncStager)
    held = state()
    held["model"]._metadata = {"": {"version": 2}}
    want = held["model"]["w"].clone()
    copy = stager.stage(held)
    held["model"]["w"].zero_()
    held["list"][1]["n"] = 2
    assert type(copy["model"]) is OrderedDict
    assert vars(copy["model"])["_metadata"] == {"": {"version": 2}}
    assert torch.equal(copy["model"]["w"], want)
    assert torch.equal(copy["model"]["turned"], want.t()[3:9])
    assert copy["model"]["tied"].data_ptr() == copy["model"]["w"].data_ptr()
    assert copy["list"][1] == {"n": 1}
    assert copy["lr"] == 0.5


def test_memory_is_used_again_when_nobody_reads_it() -> None:
    stager = Stager()
    held = state()
    stager.reserve(held)
    copy = stager.stage(held)
    first = copy["model"]["w"].data_ptr()
    view = copy["model"]["w"][5].numpy()
    want = view.copy()
    del copy
    held["model"]["w"].zero_()
    other = stager.stage(held)  # a row of the first is still in use
    second = other["model"]["w"].data_ptr()
    assert second != first
    assert (view == want).all()
    del view, other
    for _ in range(3):
        copy = stager.stage(held)
        assert copy["model"]["w"].data_ptr() in (first, second)
        del copy
    # What is larger takes the place of what it outgrows.
    held["more"] = torch.ones(100_000)
    copy = stager.stage(held)
    assert torch.equal(copy["more"], held["more"])
    stager.close()
    assert torch.equal(copy["more"], held["more"])
    with pytest.raises(InvalidArgument, match="this stager is closed"):
        stager.stage(held)


class Watched(Stager):
    """Remembers where it has put things."""

    def __init__(self) -> None:
        super().__init__()
        self.pointers: list[int] = []

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        copy = super().stage(state_dict)
        self.pointers.append(copy["model"]["weight"].data_ptr())
        return copy

    def wait(self) -> None:
        """Until the thread of the last save has let go."""
        deadline = time.monotonic() + 30
        while not all(slot.is_free for slot in self._slots):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_save_beside_the_training_has_what_was_staged(tmp_path: Path) -> None:
    stager = Watched()
    model = nn.Linear(300, 200)
    for step in range(4):
        want = model.weight.detach().clone()
        future = start_save({"model": model.state_dict(), "step": step}, tmp_path, stager)
        with torch.no_grad():
            model.weight.mul_(-2)
        future.result()
        found: dict[str, Any] = {
            "model": {"weight": torch.zeros(200, 300), "bias": torch.zeros(200)},
            "step": 0,
        }
        assert load(found, tmp_path) == found["step"] == step
        assert torch.equal(found["model"]["weight"], want)
        stager.wait()
    assert stager.pointers == stager.pointers[:1] * 4


def test_a_save_that_is_not_done_keeps_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stager, go = Stager(), threading.Event()
    plain = Writer.write_data

    def wait(self: Writer, *args: Any) -> Any:
        go.wait(60)
        return plain(self, *args)

    monkeypatch.setattr(Writer, "write_data", wait)
    futures = [start_save({"w": torch.full((5000,), n)}, tmp_path, stager) for n in (1.0, 2.0)]
    go.set()
    for future in futures:
        future.result()
    # Both were under way at once: each is whole, and nothing that either needs was removed.
    store = Store.open(tmp_path)
    assert [store.verify(name) for name in store.names()] == [[], []]
    values = {float(store.state(store.manifest(name))["w"][0]) for name in store.names()}
    assert values == {1.0, 2.0}


def test_torchs_own_stager_serves_as_well(tmp_path: Path) -> None:
    held = {"w": torch.ones(500)}
    future = start_save(held, tmp_path, None)
    held["w"].zero_()
    future.result()
    found = {"w": torch.zeros(500)}
    load(found, tmp_path)
    assert found["w"].unique().tolist() == [1]


def test_a_planner_that_is_kept_costs_one_more_buffer(tmp_path: Path) -> None:
    stager, planner = Stager(), DefaultSavePlanner(enable_plan_caching=True)
    for n in range(5):
        start_save({"w": torch.full((5000,), n)}, tmp_path, stager, planner=planner).result()
    assert len(stager._slots) <= 2
    found = {"w": torch.zeros(5000, dtype=torch.int64)}
    load(found, tmp_path)
    assert found["w"].unique().tolist() == [4]


def test_what_goes_wrong_beside_the_training_is_told(tmp_path: Path) -> None:
    stager = Stager()
    future = start_save({"w": torch.ones(3), "o": tmp_path}, tmp_path / "store", stager)
    with pytest.raises(CheckpointException, match=r"InvalidArgument: state\['o'\] is a pathlib"):
        future.result()
    start_save({"w": torch.ones(3)}, tmp_path / "store", stager).result()
    with pytest.raises(InvalidArgument, match=r"state\['s'\] is a torch.sparse_coo tensor"):
        stager.stage({"s": torch.eye(3).to_sparse()})
