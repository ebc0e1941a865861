"""Small trainings for the tests: runs of one seed have the same losses, to the last bit."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elbowroom.store.checkpoint import Checkpointer


@dataclass
class Run:
    """A network with everything that has a state, and the losses it has seen."""

    model: nn.Sequential
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    losses: list[float] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses[:] = state["losses"]

    def step(self) -> None:
        """Draw a batch from every generator there is, and learn from it."""
        x = torch.randn(16, 12) + random.random() + float(np.random.rand())  # noqa: NPY002
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.losses.append(loss.item())

    def checkpointer(self, where: Path | str, **options: Any) -> Checkpointer:
        options.setdefault("handle_signals", False)
        return Checkpointer(
            where,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            progress=self,
            **options,
        )


def start(seed: int = 0, width: int = 32) -> Run:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    model = nn.Sequential(
        nn.Linear(12, width),
        nn.BatchNorm1d(width),
        nn.Dropout(0.2),
        nn.GELU(),
        nn.Linear(width, 4),
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 9, 9])
    return Run(model, optimizer, scheduler)


def losses_of(steps: int, seed: int = 0) -> list[float]:
    """Of a run that nothing interrupts."""
    run = start(seed)
    for _ in range(steps):
        run.step()
    return run.losses


def tensors_of(run: Run) -> dict[str, Tensor]:
    found = dict(run.model.state_dict())
    for number, state in run.optimizer.state_dict()["state"].items():
        found |= {f"{number}.{name}": value for name, value in state.items()}
    return found
