"""How long it takes from the disk to the first step, against reading as many bytes.

Files are dropped from the page cache before each reading. Contenders take turns.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from checkpoint_models import Training, make

import elbowroom as er


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


def main() -> None:
    """Print seconds and ratios."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--increments", type=int, default=0, help="differences behind the first")
    parser.add_argument("--where", default=".", help="a folder on the disk that counts")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.where))
    training = make(options.megabytes)
    with er.Checkpointer(
        folder / "store", model=training.model, optimizer=training.optimizer, handle_signals=False
    ) as checkpointer:
        checkpointer.save(sync=True)
        for _ in range(options.increments):
            training.step()
            checkpointer.step()
            checkpointer.save(sync=True)
    state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
    torch.save(state, folder / "state.pt")
    nbytes = training.nbytes
    sizes = [p.nbytes for p in training.model.parameters() for _ in ("weights", "two", "moments")]
    raw = folder / "raw"
    raw.write_bytes(np.random.default_rng(0).bytes(nbytes))

    def ours(fresh: Training) -> None:
        er.Checkpointer(
            folder / "store", model=fresh.model, optimizer=fresh.optimizer, handle_signals=False
        ).close(save=False)

    def theirs(fresh: Training) -> None:
        held = torch.load(folder / "state.pt", weights_only=True)
        fresh.model.load_state_dict(held["model"])
        fresh.optimizer.load_state_dict(held["optimizer"])

    ways: dict[str, Callable[[Training], object]] = {
        "raw read": lambda fresh: read_raw(raw, sizes),
        "torch.load": theirs,
        "elbowroom": ours,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    try:
        for number in range(options.rounds + 1):
            for name, way in ways.items():
                fresh = make(options.megabytes)
                forget(folder)
                start = time.perf_counter()
                way(fresh)
                if number:
                    seconds[name].append(time.perf_counter() - start)
    finally:
        shutil.rmtree(folder)
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
