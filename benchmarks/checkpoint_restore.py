"""How long it takes from the disk to the first step, against reading as many bytes.

A run that goes on is a new process, so every reading is one. Files are dropped from the page cache
before each. Contenders take turns.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from checkpoint_models import make

from elbowroom import Checkpointer

WAYS = ("raw read", "torch.load", "elbowroom")


def forget(folder: Path) -> None:
    """Have the disk read again."""
    for path in (folder, *folder.rglob("*")):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def read_raw(path: Path, sizes: list[int]) -> list[torch.Tensor]:
    """From its beginning to its end, into new tensors of these sizes, as a state needs them."""
    found = []
    with path.open("rb", buffering=0) as file:
        for nbytes in sizes:
            found.append(torch.empty(nbytes, dtype=torch.uint8))
            left = memoryview(found[-1].numpy())
            while left:
                left = left[file.readinto(left) :]
    return found


def restore(way: str, folder: Path, megabytes: int) -> float:
    """Seconds of one way, in a process that has read nothing yet."""
    fresh = make(megabytes)
    # What torch loads when an optimizer first gets a state is not the reading's cost.
    small = make(0)
    small.optimizer.load_state_dict(small.optimizer.state_dict())
    sizes = [p.nbytes for p in fresh.model.parameters() for _ in ("weights", "two", "moments")]
    forget(folder)
    # Virtual machines give free memory back to their host: to get it again takes longer than to
    # read a disk, and not always as long.
    torch.ones(2 * sum(sizes), dtype=torch.uint8)
    start = time.perf_counter()
    held: object = None
    if way == "raw read":
        held = read_raw(folder / "raw", sizes)
    elif way == "torch.load":
        held = state = torch.load(folder / "state.pt", weights_only=True)
        fresh.model.load_state_dict(state["model"])
        fresh.optimizer.load_state_dict(state["optimizer"])
    else:
        held = Checkpointer(
            folder / "store", model=fresh.model, optimizer=fresh.optimizer, handle_signals=False
        )
    took_s = time.perf_counter() - start
    if isinstance(held, Checkpointer):
        held.close(save=False)
    return took_s


def prepare(folder: Path, megabytes: int, increments: int) -> int:
    """Write what will be read; the bytes of the state."""
    training = make(megabytes)
    with Checkpointer(
        folder / "store", model=training.model, optimizer=training.optimizer, handle_signals=False
    ) as checkpointer:
        checkpointer.save(sync=True)
        for _ in range(increments):
            training.step()
            checkpointer.step()
            checkpointer.save(sync=True)
    state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
    torch.save(state, folder / "state.pt")
    (folder / "raw").write_bytes(np.random.default_rng(0).bytes(training.nbytes))
    return training.nbytes


def main() -> None:
    """Print seconds and ratios."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--increments", type=int, default=0, help="differences behind the first")
    parser.add_argument("--where", default=".", help="a folder on the disk that counts")
    parser.add_argument("--way", choices=WAYS, help="only this one, once, of what --where has")
    options = parser.parse_args()
    if options.way:
        print(restore(options.way, Path(options.where), options.megabytes))
        return
    folder = Path(tempfile.mkdtemp(dir=options.where))
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    try:
        nbytes = prepare(folder, options.megabytes, options.increments)
        for _ in range(options.rounds):
            for way, found in seconds.items():
                command = [sys.executable, __file__, "--way", way, "--where", str(folder)]
                command += ["--megabytes", str(options.megabytes)]
                found.append(float(subprocess.check_output(command, text=True)))
    finally:
        shutil.rmtree(folder)
    for name, found in seconds.items():
        print(name, " ".join(f"{s:.3f}" for s in found), file=sys.stderr)
    raw_s = seconds["raw read"]
    print(f"{nbytes / 1e6:.0f} MB, {options.rounds} rounds\n")
    print("| | median s | least s | times a raw read, by medians | by the least |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, found in seconds.items():
        middle, least = statistics.median(found), min(found)
        print(
            f"| {name} | {middle:.3f} | {least:.3f} | {middle / statistics.median(raw_s):.2f} | "
            f"{least / min(raw_s):.2f} |"
        )


if __name__ == "__main__":
    main()
