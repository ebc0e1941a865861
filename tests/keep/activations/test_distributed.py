"""Under DistributedDataParallel and FSDP2, in real gloo processes."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import elbowroom as er
from tests.keep.activations.models import make


def start(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)


def data_parallel(rank: int, folder: str, tolerance: float) -> None:
    start(rank, folder)
    model, x, y = make("convolutional")
    wrapped = DistributedDataParallel(model)
    mine = slice(8 * rank, 8 * rank + 8)
    results = []
    for room in (None, er.Activations(wrapped, tolerance=tolerance, meter=2)):
        for _ in range(4):
            wrapped.zero_grad()
            if room is None:
                loss = functional.cross_entropy(wrapped(x[mine]), y[mine])
            else:
                with room:
                    loss = functional.cross_entropy(wrapped(x[mine]), y[mine])
            loss.backward()
        results.append([p.grad.clone() for p in model.parameters()])
    plain, ours = results
    if tolerance == 0:
        assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
    else:
        error = sum(float((a - b).square().sum()) for a, b in zip(plain, ours, strict=True))
        assert 0 < error < 0.05 * sum(float(a.square().sum()) for a in plain)
    dist.destroy_process_group()


def fully_sharded(rank: int, folder: str, tolerance: float) -> None:
    start(rank, folder)
    results: list[list[torch.Tensor]] = []
    for compressed in (False, True):
        model, x, y = make("transformer")
        model.eval()
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        room: Any = er.Activations(model, tolerance=tolerance) if compressed else None
        mine = slice(8 * rank, 8 * rank + 8)
        for _ in range(3):
            model.zero_grad()
            if room is None:
                loss = functional.cross_entropy(model(x[mine]), y[mine])
            else:
                with room:
                    loss = functional.cross_entropy(model(x[mine]), y[mine])
            loss.backward()
        results.append([p.grad.full_tensor().clone() for p in model.parameters()])
    plain, ours = results
    if tolerance == 0:
        assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
    else:
        error = sum(float((a - b).square().sum()) for a, b in zip(plain, ours, strict=True))
        assert 0 < error < 0.05 * sum(float(a.square().sum()) for a in plain)
    dist.destroy_process_group()


def test_data_parallel_exact(tmp_path: Path) -> None:
    mp.spawn(data_parallel, (str(tmp_path), 0.0), nprocs=2)


def test_data_parallel_lossy(tmp_path: Path) -> None:
    mp.spawn(data_parallel, (str(tmp_path), 0.1), nprocs=2)


def test_fully_sharded_exact(tmp_path: Path) -> None:
    mp.spawn(fully_sharded, (str(tmp_path), 0.0), nprocs=2)


def test_fully_sharded_lossy(tmp_path: Path) -> None:
    mp.spawn(fully_sharded, (str(tmp_path), 0.1), nprocs=2)
