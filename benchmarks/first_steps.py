"""Time and peak of each of the first steps of a small GPT that returns its own loss.

    python benchmarks/first_steps.py [--steps 40] [--threads 1] [--json]

Plain, with tolerance 0 and with the default, one process each. Looks at the gradients and the meter
come most often in these steps: what they add to single steps shows here.
"""

import argparse
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

MODES: dict[str, dict[str, Any] | None] = {"plain": None, "0": {"tolerance": 0}, "default": {}}
CLASSES, TIME, WIDTH, BATCH = 65, 256, 256, 16


class Block(nn.Module):
    """Attention and two layers, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).split(WIDTH, 2)
        q, k, v = (part.view(*x.shape[:2], 4, -1).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.2)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(x.shape)))
        return x + self.drop(self.down(functional.gelu(self.up(self.norm2(x)))))


class Network(nn.Module):
    """Returns its loss, as many models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(CLASSES, WIDTH), nn.Embedding(TIME, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        y = self.blocks(self.embed(x) + self.place.weight[: x.shape[1]])
        return functional.cross_entropy(self.out(self.norm(y)).flatten(0, 1), target.flatten())


def train(mode: str, steps: int, threads: int) -> dict[str, Any]:
    """In this process: seconds, CPU seconds and megabytes above the start, of each step."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    options = MODES[mode]
    room = None if options is None else er.Activations(model, optimizer=optimizer, **options)
    base = status("VmRSS")
    seconds: list[float] = []
    cpu_s: list[float] = []
    peaks: list[float] = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        # Each symbol follows from the one before, or from none.
        text = torch.randint(CLASSES, (BATCH, TIME + 1), generator=generator)
        follows = torch.rand(text.shape, generator=generator) < 0.7
        for place in range(1, TIME + 1):
            text[:, place] = torch.where(
                follows[:, place], text[:, place - 1] * 7 % CLASSES, text[:, place]
            )
        Path("/proc/self/clear_refs").write_text("5")
        start, start_cpu = time.perf_counter(), time.process_time()
        if room is None:
            loss = model(text[:, :-1], text[:, 1:])
        else:
            with room:
                loss = model(text[:, :-1], text[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
        cpu_s.append(time.process_time() - start_cpu)
        peaks.append(round((status("VmHWM") - base) / 1e6, 1))
    return {"mode": mode, "seconds": seconds, "cpu_s": cpu_s, "peak_mb": peaks}


def status(name: str) -> int:
    """Bytes, as the kernel counts this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def main() -> None:
    """Run the modes in turn, and print a line or a JSON object for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mode", choices=MODES)
    args = parser.parse_args()
    if args.mode:
        print(json.dumps(train(args.mode, args.steps, args.threads)))
        return
    plain: dict[str, Any] = {}
    for mode in MODES:
        given = ["--mode", mode, "--steps", str(args.steps), "--threads", str(args.threads)]
        done = subprocess.run(
            [sys.executable, __file__, *given], check=True, capture_output=True, text=True
        )
        found = json.loads(done.stdout)
        plain = plain or found
        if args.json:
            print(json.dumps(found))
            continue
        usual = median(found["cpu_s"])
        print(
            f"{mode:8} {sum(found['cpu_s']) / sum(plain['cpu_s']):.2f} of plain's CPU time, "
            f"longest step {max(found['cpu_s'][1:]) / usual:.2f} of a usual one, "
            f"peak {max(found['peak_mb']):.0f} MB ({max(plain['peak_mb']):.0f} MB plainly)"
        )


if __name__ == "__main__":
    main()
