"""What checkpoints of AdamW take on the disk in steady state, beside as many files of torch.save.

    ./dev bench checkpoint_disk

The state of a small network is saved 30 times, every 1 and every 10 steps; sizes are those of all
files of the store after each save, the largest and the mean of the second half, in files.
"""

import io
import tempfile
from pathlib import Path

import torch
from torch import nn

from elbowroom.store import Checkpointer


def measure(keep: int, apart: int, saves: int = 30) -> tuple[float, float]:
    """The largest size after the fifth save, and the mean of the second half, in files."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.Linear(1024, 9)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    x, y = torch.randn(4096, 256), torch.randint(0, 9, (4096,))
    sizes: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        with Checkpointer(
            *(folder,), model=model, optimizer=optimizer, every=apart, keep=keep, snapshot="copy"
        ) as ck:
            for _ in range(saves * apart):
                rows = torch.randint(0, len(x), (64,))
                nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
                optimizer.zero_grad()
                if ck.step():
                    ck.wait()
                    files = [path for path in Path(folder).rglob("*") if path.is_file()]
                    sizes.append(sum(path.stat().st_size for path in files))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    half = sizes[len(sizes) // 2 :]
    return max(sizes[5:]) / file.tell(), sum(half) / len(half) / file.tell()


def main() -> None:
    """Print a table of all settings."""
    print("| keep | saved every | most | mean | files of torch.save |")
    print("|---|---|---|---|---|")
    for keep in (1, 2, 3, 5):
        for apart in (1, 10):
            most, mean = measure(keep, apart)
            print(f"| {keep} | {apart} steps | {most:.2f} | {mean:.2f} | {keep} |", flush=True)


if __name__ == "__main__":
    main()
