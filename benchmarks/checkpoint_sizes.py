"""Bytes of increments: what the second checkpoint takes, against one that is written whole."""

import argparse
import itertools
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from checkpoint_models import make, make_adapted
from torch import nn

import elbowroom as er


@dataclass
class Case:
    """A training, and its increments."""

    model: nn.Module
    optimizer: Any
    step: Callable[[], Any]


def dense(megabytes: int) -> Case:
    """Every parameter changes at every step."""
    training = make(megabytes)
    return Case(training.model, training.optimizer, training.step)


def frozen(megabytes: int) -> Case:
    """A new layer learns on top of a network that does not."""
    training = make(megabytes)
    training.model.requires_grad_(False)
    adapter = nn.Linear(512, 64)
    training.model.add_module("adapter", adapter)
    optimizer = torch.optim.AdamW(adapter.parameters(), 1e-3)

    def step() -> None:
        loss = adapter(torch.randn(64, 512)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step()
    return Case(training.model, optimizer, step)


def lora(megabytes: int) -> Case:
    """A transformer, twice as large, with updates of rank 8 on its attention, which alone learn."""
    training = make_adapted(2 * megabytes)
    return Case(training.model, training.optimizer, training.step)


def embedding(megabytes: int) -> Case:
    """Words as rare as in a language (Zipf), of which a step touches a few; SparseAdam."""
    torch.manual_seed(0)
    rows = int(megabytes * 1e6 / 3 / 4 / 64)
    table = nn.Embedding(rows, 64, sparse=True)
    optimizer = torch.optim.SparseAdam(list(table.parameters()), 1e-3)
    draw = np.random.default_rng(0)

    def step() -> None:
        words = torch.from_numpy(draw.zipf(1.2, 2048) % rows)
        optimizer.zero_grad()
        table(words).square().mean().backward()
        optimizer.step()

    for _ in range(50):
        step()
    return Case(table, optimizer, step)


CASES = {"dense Adam": dense, "frozen": frozen, "LoRA": lora, "Zipf embedding": embedding}


def measure(case: Case, steps: int, folder: Path) -> tuple[int, list[int], float, bool]:
    """Bytes of the first checkpoint and of later ones; seconds of one; whether all came back."""
    packs = folder / "packs"
    checkpointer = er.Checkpointer(
        folder, model=case.model, optimizer=case.optimizer, keep=None, handle_signals=False
    )
    checkpointer.save(sync=True)
    sizes = [size_of(packs)]
    seconds = 0.0
    for _ in range(3):
        for _ in range(steps):
            case.step()
        checkpointer._steps += steps
        start = time.perf_counter()
        checkpointer.save(sync=True)
        seconds = time.perf_counter() - start
        sizes.append(size_of(packs))
    before = [value.clone() for value in case.model.state_dict().values()]
    checkpointer.restore()
    after = case.model.state_dict().values()
    is_same = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    checkpointer.close()
    new = [b - a for a, b in itertools.pairwise(sizes)]
    return sizes[0], new, seconds, is_same


def size_of(folder: Path) -> int:
    """Of all files."""
    return sum(path.stat().st_size for path in folder.iterdir())


def squeeze(case: Case) -> float:
    """What zstd alone makes of the bytes of a state."""
    values = [*case.model.state_dict().values()]
    for state in case.optimizer.state.values():
        values += [value for value in state.values() if isinstance(value, torch.Tensor)]
    data = b"".join(v.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for v in values)
    return len(data) / len(zstandard.ZstdCompressor(level=1).compress(data))


def main() -> None:
    """Print one table."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10, help="between two checkpoints")
    parser.add_argument("--before", type=int, default=30, help="steps before the first")
    options = parser.parse_args()
    print(
        "| state | state MB | of it learns | first MB | increments MB | of full | times smaller | "
        "zstd | same |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for name in options.cases:
        case = CASES[name](options.megabytes)
        for _ in range(options.before):
            case.step()
        with tempfile.TemporaryDirectory() as folder:
            first, new, _, is_same = measure(case, options.steps, Path(folder))
        learning = sum(p.nbytes for p in case.model.parameters() if p.requires_grad)
        for moments in case.optimizer.state.values():
            learning += sum(v.nbytes for v in moments.values() if isinstance(v, torch.Tensor))
        state = learning + sum(p.nbytes for p in case.model.parameters() if not p.requires_grad)
        mean = sum(new) / len(new)
        print(
            f"| {name} | {state / 1e6:.1f} | {learning / state:.2%} | {first / 1e6:.1f} | "
            f"{', '.join(f'{size / 1e6:.2f}' for size in new)} | {mean / state:.2%} | "
            f"{state / mean:.2f} | {squeeze(case):.2f} | {is_same} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
