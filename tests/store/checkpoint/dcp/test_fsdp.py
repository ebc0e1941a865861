"""FSDP2 in real gloo processes: saved by four, loaded by four, two and one."""

import errno
import gc
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import elbowroom
from elbowroom.store.checkpoint import Store
from elbowroom.store.checkpoint.dcp import Stager, Writer, load, save


class Network(nn.Module):
    """Sizes that ranks share well, badly and not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 256)
        self.second = nn.Linear(256, 30)
        self.third = nn.Linear(30, 3)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


def build(seed: int, *, sharded: bool = True) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Network()
    model.first.weight.requires_grad_(False)
    if sharded:
        fully_shard(model.second)
        fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1 * seed)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        seed = 100 * step + (dist.get_rank() if dist.is_initialized() else 0)
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(seed))
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optim": moments}


def put_back(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
    )


def whole(value: Any) -> Any:
    """A copy with all tensors gathered."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.clone() if isinstance(value, Tensor) else value


def check_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            check_same(one[key], other[key])
    elif isinstance(one, list):
        for mine, theirs in zip(one, other, strict=True):
            check_same(mine, theirs)
    elif isinstance(one, Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    else:
        assert one == other


def new_bytes(folder: Path, work: Callable[[], Any]) -> int:
    """How many more bytes the packs have after it, for all ranks."""
    sizes = []
    for job in (lambda: None, work):
        job()
        dist.barrier()
        sizes.append(sum(path.stat().st_size for path in (folder / "packs").glob("*")))
        dist.barrier()
    return sizes[1] - sizes[0]


def on_four(rank: int, folder: Path) -> None:
    store = folder / "store"
    model, optimizer = build(0)
    train(model, optimizer, range(3))
    before = state_of(model, optimizer)
    assert save(before, store, step=3, keep=None) == 3
    if rank == 0:
        (folder / "reference").mkdir()
    gathered = whole(before)
    if rank == 0:
        torch.save(gathered, folder / "reference" / "state")
        manifest = Store.open(store).manifest(Store.open(store).names()[-1])
        assert len(manifest.parts) == 4
    # One more step: what is frozen is not written again.
    after = train(model, optimizer, range(3, 4))
    sizes = [
        new_bytes(store, lambda: save(state_of(model, optimizer), store, keep=None))
        for _ in range(3)
    ]
    assert sizes[0] < 100_000  # of 162 kB in all; what is frozen then moves to a pack of its own
    assert sizes[2] == 0
    after += train(model, optimizer, range(4, 6))

    other, its = build(1)
    state = state_of(other, its)
    assert load(state, store, step=3) == 3
    check_same(whole(state), gathered)
    put_back(other, its, state)
    assert train(other, its, range(3, 6)) == after
    beside_the_training(store, other, its)
    fail_on_one(rank, store, other, its)


def beside_the_training(store: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    stager = Stager()
    # The training has collectives of its own, with which these would get mixed up.
    group: Any = dist.new_group(backend="gloo")
    for step in (20, 21):
        state = state_of(model, optimizer)
        want = whole(state)
        future: Any = torch_dcp.async_save(
            state,
            storage_writer=Writer(store, step=step, keep=None),
            async_stager=stager,
            process_group=group,
        )
        train(model, optimizer, range(2))
        future.result()
        other, its = build(2)
        found = state_of(other, its)
        assert load(found, store) == step
        check_same(whole(found), want)


def fail_on_one(rank: int, store: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A rank without room on its disk: all of them hear of it, and the last checkpoint stays."""
    writer: Any = Writer
    plain = writer.write_data

    def fail(self: Writer, *args: Any) -> Any:
        raise OSError(errno.ENOSPC, "no space left on rank 2")

    if rank == 2:
        writer.write_data = fail
    with pytest.raises(OSError, match="no space left on rank 2"):
        save(state_of(model, optimizer), store, step=30, keep=None)
    writer.write_data = plain
    assert load(state_of(*build(3)), store) == 21
    dist.barrier()
    assert save(state_of(model, optimizer), store, step=31, keep=None) == 31


def on_two(rank: int, folder: Path) -> None:
    store = folder / "store"
    model, optimizer = build(4)
    state = state_of(model, optimizer)
    assert load(state, store) == 31
    put_back(model, optimizer, state)
    # A shard of two begins with that of another rank: what is long enough is not written again.
    assert new_bytes(store, lambda: save(state_of(model, optimizer), store, keep=None)) < 110_000
    assert load(state, store, step=3) == 3
    check_same(whole(state), torch.load(folder / "reference" / "state", weights_only=True))
    put_back(model, optimizer, state)
    assert save(state_of(model, optimizer), store, step=40, keep=None) == 40


def in_the_background(rank: int, folder: Path) -> None:
    """A process of torch's own does the saving."""
    store = folder / "store"
    stager = Stager()
    for step in range(2):
        model, optimizer = build(step)
        train(model, optimizer, range(2))
        state = state_of(model, optimizer)
        want = whole(state)
        future: Any = torch_dcp.async_save(
            state,
            storage_writer=Writer(store, step=step),
            async_stager=stager,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )
        train(model, optimizer, range(2))
        future.result()
        found = state_of(*build(7))
        assert load(found, store) == step
        check_same(whole(found), want)


NEEDED = ["torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict", "pytest"]
JOBS = {"four": on_four, "two": on_two, "background": in_the_background}


def work(rank: int, world: int, folder: str, job: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["MASTER_ADDR"] = "localhost"
    meeting = f"file://{folder}/meet-{job}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    JOBS[job](rank, Path(folder))
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def spawn(folder: Path, job: str, world: int) -> None:
    """Processes that have to end, well or not."""
    # One process imports, and all others come from it: that takes seconds each time.
    multiprocessing.set_forkserver_preload(["elbowroom.store.checkpoint.dcp", *NEEDED])
    context: Any = mp.start_processes(
        work, (world, str(folder), job), nprocs=world, join=False, start_method="forkserver"
    )
    for _ in range(4):
        if context.join(timeout=100):
            return
    for process in context.processes:
        process.kill()
    raise TimeoutError(job)


def test_four_save_and_four_two_and_one_load(tmp_path: Path) -> None:
    spawn(tmp_path, "four", 4)
    spawn(tmp_path, "two", 2)
    model, optimizer = build(6, sharded=False)
    for step in (3, 40):
        state = state_of(model, optimizer)
        assert load(state, tmp_path / "store", step=step) == step
        want = torch.load(tmp_path / "reference" / "state", weights_only=True)
        check_same(state, want)
        check_same(elbowroom.load(tmp_path / "store", step=step), want)  # without a model to fill
    put_back(model, optimizer, state)
    assert int(model.get_buffer("count")) == 3
    assert train(model, optimizer, range(3, 4))[0] > 0
    store = Store.open(tmp_path / "store")
    assert [store.verify(name) for name in store.names()] == [[]] * len(store.names())


def test_a_process_in_the_background_saves(tmp_path: Path) -> None:
    spawn(tmp_path, "background", 1)
