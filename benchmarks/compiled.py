"""Compiled models beside eager ones: bytes kept, peak of a step, and its time.

    python benchmarks/compiled.py [--steps 60] [--json results.json]

A small GPT with the loss outside of the model. Each case runs in a process of its own, after one
that fills the compiler's cache: plain, tolerance 0 and default, eager and compiled by inductor.
Steps that look at gradients are part of the mean time, and left out of the median.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er

WIDTH, LAYERS, LENGTH, BATCH, SYMBOLS = 256, 4, 256, 16, 65
ROOMS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "tolerance 0": {"tolerance": 0},
    "default": {},
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.split, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.split(self.first(x)).split(WIDTH, 2)
        q, k, v = (t.view(batch, length, 4, -1).transpose(1, 2) for t in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.join(y.transpose(1, 2).reshape(x.shape)))
        return x + self.drop(self.down(functional.gelu(self.up(self.second(x)))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SYMBOLS)

    def forward(self, index: Tensor) -> Tensor:
        x = self.symbols(index) + self.places(torch.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random walks over symbols, and the next symbol at each place."""
    steps = torch.randint(-2, 3, (BATCH, LENGTH + 1), generator=generator)
    walk = (steps.cumsum(1) + torch.randint(SYMBOLS, (BATCH, 1), generator=generator)) % SYMBOLS
    return walk[:, :-1], walk[:, 1:]


def resident_bytes(line: str) -> int:
    text = Path("/proc/self/status").read_text()
    return next(int(row.split()[1]) << 10 for row in text.splitlines() if row.startswith(line))


def train(name: str, *, is_compiled: bool, steps: int) -> dict[str, Any]:
    """One case, in this process."""
    torch.manual_seed(0)
    own = GPT()
    model: Any = torch.compile(own) if is_compiled else own
    optimizer = torch.optim.AdamW(own.parameters(), 1e-3)
    options = ROOMS[name]
    room = None if options is None else er.Activations(model, optimizer=optimizer, **options)
    generator = torch.Generator().manual_seed(1)
    seconds: list[float] = []
    peaks: list[int] = []
    ratios: list[float] = []
    loss = torch.zeros(())
    for _ in range(steps):
        index, target = batch(generator)
        Path("/proc/self/clear_refs").write_text("5")
        start = time.perf_counter()
        with room or contextlib.nullcontext():
            logits = model(index)
        loss = functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        del logits
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
        peaks.append(resident_bytes("VmHWM"))
        ratios.append(1.0 if room is None else room.ledger.ratio)
    late = slice(steps // 2, None)
    return {
        "case": name,
        "compiled": is_compiled,
        "ratio": median(ratios[late]),
        "peak_bytes": max(peaks[late]),
        "median_s": median(seconds[late]),
        "mean_s": sum(seconds[late]) / len(seconds[late]),
        "loss": float(loss),
        "predicted": 0.0 if room is None else room.ledger.gradient_error,
        "measured": [r.measured for r in room.ledger.readings] if room is not None else [],
        "events": [] if room is None else list(room.ledger.events),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("CASE", "HOW"), help="run one case here")
    orders = parser.parse_args()
    if orders.one:
        name, how = orders.one
        print(json.dumps(train(name, is_compiled=how == "compiled", steps=orders.steps)))
        return
    results: list[dict[str, Any]] = []
    for how in ("eager", "compiled"):
        for name in ROOMS:
            command = [sys.executable, __file__, "--one", name, how, "--steps"]
            if how == "compiled":
                # What compiling leaves in the heap is no part of a step.
                subprocess.run([*command, "2"], check=True, stdout=subprocess.DEVNULL)
            done = subprocess.run(
                [*command, str(orders.steps)], check=True, stdout=subprocess.PIPE, text=True
            )
            results.append(json.loads(done.stdout.splitlines()[-1]))
            found = results[-1]
            print(
                f"{how:9}{name:12} {found['ratio']:5.1f}x  peak {found['peak_bytes'] / 1e6:6.0f} MB"
                f"  step {found['median_s']:.3f} s (mean {found['mean_s']:.3f})"
            )
    if orders.json:
        orders.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
