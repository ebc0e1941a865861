"""Under DistributedDataParallel and FSDP2, in real gloo processes."""

import gc
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import elbowroom as er
from elbowroom.keep.activations.shards import working_parameters
from tests.keep.activations.models import make


def work(rank: int, folder: str, job: str, tolerance: float) -> None:
    """One process: its models are gone before the group is, which would wait for them."""
    start(rank, folder)
    jobs = {
        "data parallel": data_parallel,
        "fully sharded": fully_sharded,
        "bounds of shards": bounds_of_shards,
    }
    jobs[job](rank, tolerance)
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def start(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)


def step(model: Any, rank: int, x: Tensor, y: Tensor, room: Any, count: int) -> None:
    """Some steps on this process's share of the batch; the last one's gradients stay."""
    mine = slice(8 * rank, 8 * rank + 8)
    for _ in range(count):
        model.zero_grad()
        with room or nullcontext():
            loss = functional.cross_entropy(model(x[mine]), y[mine])
        loss.backward()


def compare(plain: list[Tensor], ours: list[Tensor], tolerance: float) -> None:
    """The same bits, or close and not the same."""
    if tolerance == 0:
        assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
        return
    error = sum(float((a - b).square().sum()) for a, b in zip(plain, ours, strict=True))
    assert 0 < error < 0.05 * sum(float(a.square().sum()) for a in plain)


def data_parallel(rank: int, tolerance: float) -> None:
    model, x, y = make("convolutional")
    wrapped = DistributedDataParallel(model)
    results: list[list[Tensor]] = []
    for room in (None, er.Activations(wrapped, tolerance=tolerance, meter=2, overhead=None)):
        step(wrapped, rank, x, y, room, 4)
        results.append([p.grad.clone() for p in model.parameters()])
    compare(results[0], results[1], tolerance)


def fully_sharded(rank: int, tolerance: float) -> None:
    results: list[list[Tensor]] = []
    for compressed in (False, True):
        model, x, y = make("transformer")
        model.eval()
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        room = er.Activations(model, tolerance=tolerance, overhead=None) if compressed else None
        step(model, rank, x, y, room, 3)
        results.append([p.grad.full_tensor().clone() for p in model.parameters()])
    compare(results[0], results[1], tolerance)


def bounds_of_shards(rank: int, tolerance: float) -> None:
    """The variance is that of this process's batches, as without shards, and bounds follow it."""
    variances: list[float] = []
    for sharded in (False, True):
        model, x, y = make("transformer")
        model.eval()
        if sharded:
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
        room = er.Activations(model, tolerance=tolerance, meter=0, overhead=None)
        ratios: list[float] = []
        for seed in range(9):
            order = torch.randperm(16, generator=torch.Generator().manual_seed(2 * seed + rank))[:8]
            model.zero_grad()
            with room:
                loss = functional.cross_entropy(model(x[order]), y[order])
            loss.backward()
            ratios.append(room.ledger.ratio)
        found = [room._noise.variance(p) for p in working_parameters(model)]
        assert all(variance is not None for variance in found)
        variances.append(sum(variance or 0.0 for variance in found))
        assert 0 < room.ledger.gradient_error <= tolerance * 1.001
        assert ratios[-1] > 1.5 * ratios[0]
    assert variances[1] == pytest.approx(variances[0], rel=0.3)


def spawn(folder: Path, job: str, tolerance: float) -> None:
    """Two processes that have to end, well or not."""
    context: Any = mp.spawn(work, (str(folder), job, tolerance), nprocs=2, join=False)
    for _ in range(4):
        if context.join(timeout=100):
            return
    for process in context.processes:
        process.kill()
    pytest.fail("the processes did not end")


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
@pytest.mark.parametrize("job", ["data parallel", "fully sharded"])
def test_gradients_of_two_processes(job: str, tolerance: float, tmp_path: Path) -> None:
    spawn(tmp_path, job, tolerance)


def test_bounds_follow_the_gradients_of_a_sharded_model(tmp_path: Path) -> None:
    spawn(tmp_path, "bounds of shards", 0.1)
