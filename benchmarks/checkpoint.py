"""Checkpoints against their peers: how long the loop stands still, and when all is on disk.

All contenders save the same training in one process, in an order that is drawn anew every round.
After each save some steps are trained, beside which the asynchronous ones go on writing.
"""

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from checkpoint_models import Training, make
from safetensors.torch import save_file

import elbowroom as er
from elbowroom.store.checkpoint.snapshot import Buffer, lay_out

SYNC = "elbowroom, sync"
SYNCHRONOUS = {"raw write + fsync", "torch.save + fsync", "safetensors + fsync", "dcp.save", SYNC}


@dataclass
class Times:
    """Seconds of one contender, one entry a round."""

    stall: list[float] = field(default_factory=list)
    added: list[float] = field(default_factory=list)
    durable: list[float] = field(default_factory=list)


def tensors_of(training: Training) -> dict[str, torch.Tensor]:
    """All tensors of a state by name."""
    found = {f"model.{name}": value for name, value in training.model.state_dict().items()}
    for number, state in training.optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{number}.{name}": value for name, value in state.items()}
    return found


def sync(path: Path) -> None:
    """Have a file on disk."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


class Contenders:
    """Ways to save: each begins, returns, and gives a function that waits until all is durable."""

    def __init__(self, training: Training, folder: Path) -> None:
        self.training, self.folder, self.count = training, folder, 0
        named = list(tensors_of(training).items())
        pieces, nbytes = lay_out(named)
        self.buffer = Buffer()
        self.buffer.reserve(nbytes)
        self.copies = [
            (tensor.detach(), self.buffer.tensor(piece))
            for (_, tensor), piece in zip(named, pieces, strict=True)
        ]
        self.raw = torch.empty(training.nbytes, dtype=torch.uint8).random_(0, 255)
        self.checkpointers = {
            "elbowroom": self._checkpointer("eager", lazy=False),
            "elbowroom, lazy": self._checkpointer("lazy", lazy=True),
        }

    def _checkpointer(self, name: str, *, lazy: bool) -> er.Checkpointer:
        return er.Checkpointer(
            self.folder / name,
            model=self.training.model,
            optimizer=self.training.optimizer,
            keep=1,
            lazy=lazy,
            handle_signals=False,
        )

    def all(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        """By name."""
        found: dict[str, Callable[[], Callable[[], Any]]] = {
            "warm memcpy": self.memcpy,
            "raw write + fsync": self.write_raw,
            "torch.save + fsync": self.save_torch,
            "safetensors + fsync": self.save_safetensors,
            "dcp.save": self.save_dcp,
            "dcp.async_save": self.save_dcp_async,
        }
        for name, checkpointer in self.checkpointers.items():
            found[name] = lambda checkpointer=checkpointer: self.save_ours(checkpointer)
        found[SYNC] = lambda: self.save_ours(self.checkpointers["elbowroom"], sync=True)
        return found

    def new(self, ending: str) -> Path:
        """A place that was not there before."""
        self.count += 1
        return self.folder / f"{self.count}{ending}"

    def memcpy(self) -> Callable[[], Any]:
        """What torch takes to copy the tensors to places that are there: nothing else is done."""
        for tensor, place in self.copies:
            place.copy_(tensor)
        return lambda: None

    def write_raw(self) -> Callable[[], Any]:
        """As many bytes, in one go."""
        path = self.new(".raw")
        with path.open("wb", buffering=0) as file:
            data = self.raw.numpy().data
            done = 0
            while done < len(data):
                done += file.write(data[done:]) or 0
            os.fsync(file.fileno())
        path.unlink()
        return lambda: None

    def save_torch(self) -> Callable[[], Any]:
        """PyTorch's own, with an fsync that it does not do."""
        path = self.new(".pt")
        torch.save(tensors_of(self.training), path)
        sync(path)
        path.unlink()
        return lambda: None

    def save_safetensors(self) -> Callable[[], Any]:
        """The same in the format of safetensors."""
        path = self.new(".safetensors")
        save_file(tensors_of(self.training), path)
        sync(path)
        path.unlink()
        return lambda: None

    def save_dcp(self) -> Callable[[], Any]:
        """torch.distributed.checkpoint, which syncs its files."""
        path = self.new("")
        dcp.save(tensors_of(self.training), checkpoint_id=path, no_dist=True)
        shutil.rmtree(path)
        return lambda: None

    def save_dcp_async(self) -> Callable[[], Any]:
        """The same beside the training."""
        path = self.new("")
        future: Any = dcp.async_save(tensors_of(self.training), checkpoint_id=path, no_dist=True)

        def wait() -> None:
            future.result()
            shutil.rmtree(path)

        return wait

    def save_ours(self, checkpointer: er.Checkpointer, *, sync: bool = False) -> Callable[[], Any]:
        """Ours."""
        checkpointer._steps += 1
        checkpointer.save(sync=sync)
        return checkpointer.wait


def measure(options: argparse.Namespace) -> dict[str, Times]:
    """All contenders in turn."""
    torch.set_num_threads(options.threads)
    draw = random.Random(0)
    with tempfile.TemporaryDirectory(dir=options.where) as folder:
        training = make(options.megabytes)
        contenders = Contenders(training, Path(folder))
        if not options.increments:
            for checkpointer in contenders.checkpointers.values():
                forget(checkpointer)
        times = {name: Times() for name in contenders.all()}
        for number in range(options.rounds + 2):
            names = list(times)
            draw.shuffle(names)
            for name in names:
                measured = measure_one(training, contenders, name, options)
                if number > 1:  # the first two warm buffers and caches up
                    for key, value in measured.items():
                        getattr(times[name], key).append(value)
        for checkpointer in contenders.checkpointers.values():
            checkpointer.close()
    return times


def forget(checkpointer: er.Checkpointer) -> None:
    """Have every checkpoint written whole, for a comparison of equal bytes."""
    journal = checkpointer._journal
    write = journal.write

    def write_whole(snapshot: Any) -> None:
        from elbowroom.store.checkpoint.contents import Memory

        journal._forget_before()
        journal._memory = Memory()
        write(snapshot)

    checkpointer._persister._write = write_whole


def measure_one(
    training: Training, contenders: Contenders, name: str, options: argparse.Namespace
) -> dict[str, float]:
    """Steps without a save, a save, and steps after it."""
    alone = steps_s(training, options.steps)
    os.sync()
    start = time.perf_counter()
    wait = contenders.all()[name]()
    stalled = time.perf_counter()
    beside = steps_s(training, options.steps)
    wait()
    ended = time.perf_counter()
    stall = stalled - start
    durable = stall if name in SYNCHRONOUS else ended - start
    return {"stall": stall, "added": stall + beside - alone, "durable": durable}


def steps_s(training: Training, count: int) -> float:
    """How long some steps take."""
    start = time.perf_counter()
    for _ in range(count):
        training.step()
    return time.perf_counter() - start


def main() -> None:
    """Print one table of ratios."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="trained beside each save")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--where", default=".", help="a folder on the disk that counts")
    parser.add_argument("--increments", action="store_true", help="not every checkpoint whole")
    options = parser.parse_args()
    times = measure(options)
    raw = statistics.median(times["raw write + fsync"].stall)
    copy = statistics.median(times["warm memcpy"].stall)
    theirs = statistics.median(times["dcp.async_save"].added)
    print(f"raw write + fsync {raw:.3f} s, warm memcpy {copy:.3f} s, medians of {options.rounds}\n")
    print("| contender | stall / memcpy | added to the loop / dcp.async_save | durable / raw |")
    print("| --- | ---: | ---: | ---: |")
    for name, found in times.items():
        stall, added, durable = (
            statistics.median(values) for values in (found.stall, found.added, found.durable)
        )
        print(
            f"| {name} | {stall / copy:.2f} | {added / theirs:.2f} | "
            + ("- |" if name == "warm memcpy" else f"{durable / raw:.2f} |")
        )


if __name__ == "__main__":
    main()
