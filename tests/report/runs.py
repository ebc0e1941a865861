"""A small run for the tests: a real network, recorded plainly and with a room."""

from pathlib import Path

import torch
from torch import nn

from elbowroom.keep.activations import Activations
from elbowroom.report import Recorder
from elbowroom.report.writing import Writer

HOSTILE = "</script><img src=x onerror=alert(1)>"


class Evil(nn.Module):
    """Two layers, one of which has a name that is bait."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.add_module(HOSTILE, nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()))
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.get_submodule(HOSTILE)(self.first(x)))


def record(folder: Path, name: str, *, steps: int = 6, end: bool = True) -> Recorder:
    """Train for a few steps."""
    torch.manual_seed(0)
    network = Evil()
    optimizer = torch.optim.SGD(network.parameters(), 0.05)
    room = None if name == "plain" else Activations(network, meter=4, overhead=None)
    recorder = Recorder(
        folder,
        network,
        optimizer,
        room=room,
        name=name,
        label=f"{name} & <b>co</b>",
        planned_steps=steps,
        facts={"seed": 0, "note": HOSTILE},
        look_at=(2, 5),
    )
    for _ in range(steps):
        x = torch.randn(8, 3, 48, 48)
        with recorder:
            loss = network(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    recorder.score(steps, "accuracy", 0.5, baselines={"chance": 0.1})
    if end:
        recorder.end()
    return recorder


def record_both(folder: Path) -> Path:
    """A run with everything that a report can show."""
    for name in ("plain", "elbowroom"):
        record(folder, name)
    header = {
        "title": f"A run {HOSTILE}",
        "about": "what it is about",
        "command": f"elbowroom demo --seed 0 # {HOSTILE}",
        "machine": {"processor": HOSTILE},
    }
    with Writer(folder, "run", "run", header) as writer:
        for label, finished in (("plain, batch 12", False), ("elbowroom, batch 12", True)):
            writer.append(
                "attempt",
                label=label,
                limit_bytes=10**8,
                finished=finished,
                said=HOSTILE,
                steps=3 * finished,
                peak_bytes=10**7 if finished else None,
            )
        writer.end("finished")
    return folder
