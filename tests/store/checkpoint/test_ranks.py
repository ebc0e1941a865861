"""Several processes, one checkpoint: saved at the same step, resumed together."""

import json
import os
import random
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from elbowroom.store.checkpoint import Checkpointer, Store

from .runs import start


def work(rank: int, folder: str, world: int, steps: int, is_signalled: bool) -> None:
    """Train to so many steps on all ranks, each with random numbers of its own."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    meeting = Path(folder) / f"meet{steps}"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    run = start()
    torch.manual_seed(100 + rank)
    random.seed(200 + rank)
    np.random.seed(300 + rank)  # noqa: NPY002
    model = DistributedDataParallel(run.model)
    checkpointer = Checkpointer(
        Path(folder) / "store",
        model=run.model,
        optimizer=run.optimizer,
        scheduler=run.scheduler,
        mine=run,
        per_rank=("mine",),
        every=2,
        keep=None,
        handle_signals=is_signalled,
    )
    with checkpointer:
        run.model, plain = model, run.model  # type: ignore[assignment]
        while len(run.losses) < steps:
            run.step()
            if is_signalled and rank == world - 1 and len(run.losses) == 5:
                os.kill(os.getpid(), 15)
            checkpointer.step()
        run.model = plain
    (Path(folder) / f"losses{rank}.json").write_text(json.dumps(run.losses))
    del model
    dist.barrier()
    dist.destroy_process_group()


def train(folder: Path, world: int, steps: int, *, is_signalled: bool = False) -> list[list[float]]:
    for path in folder.glob("losses*.json"):
        path.unlink()
    mp.spawn(work, (str(folder), world, steps, is_signalled), nprocs=world)
    return [json.loads((folder / f"losses{rank}.json").read_text()) for rank in range(world)]


def test_ranks_resume_where_they_were(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    plain = train(whole, 2, 9)
    assert plain[0] != plain[1]
    train(parts, 2, 5)
    assert [name.step for name in Store.open(parts / "store").names()] == [2, 4, 5]
    assert train(parts, 2, 9) == plain
    store = Store.open(parts / "store")
    manifest = store.manifest(store.names()[-1])
    first, second = (set(store.state(manifest, rank)) for rank in range(2))
    assert first == {"steps", "model", "optimizer", "scheduler", "mine", "randomness"}
    assert second == {"mine", "randomness"}
    assert not list((parts / "store" / "parts").glob("*4-*"))


def test_a_signal_to_one_rank_ends_all_of_them(tmp_path: Path) -> None:
    # A process that ends by SystemExit(0) has ended well for the launcher.
    mp.spawn(work, (str(tmp_path), 2, 9, True), nprocs=2)
    assert not list(tmp_path.glob("losses*"))
    assert [name.step for name in Store.open(tmp_path / "store").names()] == [2, 4, 5]


def test_one_process_goes_on_alone(tmp_path: Path) -> None:
    train(tmp_path, 2, 5)
    run = start(seed=9)
    with Checkpointer(
        tmp_path / "store",
        model=run.model,
        optimizer=run.optimizer,
        scheduler=run.scheduler,
        mine=run,
    ) as checkpointer:
        assert checkpointer.resumed_from == 5
        run.step()
        checkpointer.save(sync=True)
    names = Store.open(tmp_path / "store").names()
    assert len(Store.open(tmp_path / "store").manifest(names[-1]).parts) == 1
