"""The training loop that all applications share: plain PyTorch, repeatable for a seed."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elbowroom.science.task import Recipe, Result, Schedule, Score, Task

# What the forward pass runs in, entered once a step: `with room: loss = ...`.
Room = AbstractContextManager[Any]
MakeRoom = Callable[[nn.Module, torch.optim.Optimizer], Room]
Tell = Callable[[int, float], None]  # steps done, loss


def train(
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: Path | None = None,
    room: MakeRoom | None = None,
    tell: Tell | None = None,
) -> Result:
    """Train what the recipe describes; `room` makes what the forward pass runs in.

    The seed decides the first weights, the batches and the dropout, and nothing outside.
    """
    task = recipe.make_task(folder)
    with seeded(seed):
        network = recipe.make_network(task)
    optimizer = recipe.schedule.make_optimizer(network)
    inside = room(network, optimizer) if room else None
    return fit(
        network, task, recipe.schedule, seed=seed, optimizer=optimizer, room=inside, tell=tell
    )


def fit(
    network: nn.Module,
    task: Task,
    schedule: Schedule,
    *,
    seed: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    room: Room | None = None,
    tell: Tell | None = None,
) -> Result:
    """Train the network where it lies; a loss that is not finite ends the run before its step."""
    optimizer = optimizer or schedule.make_optimizer(network)
    room = room or nullcontext()
    draws = torch.Generator().manual_seed(seed)
    device = device_of(network)
    losses: list[float] = []
    scores: list[tuple[int, Score]] = []
    diverged_at = None
    seconds = 0.0
    network.train()
    with seeded(seed):
        for step in range(schedule.steps):
            start = time.perf_counter()
            inputs, targets = (part.to(device) for part in task.draw(schedule.batch, draws))
            with room:
                loss = task.loss(network(inputs), targets)
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                diverged_at = step
                break
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate_at(step)
            optimizer.zero_grad()
            loss.backward()
            if schedule.clip is not None:
                nn.utils.clip_grad_norm_(network.parameters(), schedule.clip)
            optimizer.step()
            seconds += time.perf_counter() - start
            if tell:
                tell(step + 1, losses[-1])
            if schedule.score_every and (step + 1) % schedule.score_every == 0:
                scores.append((step + 1, task.score(network)))
    done = len(losses) if diverged_at is None else diverged_at
    if not scores or scores[-1][0] != done:
        scores.append((done, task.score(network)))
    return Result(
        task=task.name,
        seed=seed,
        losses=tuple(losses),
        scores=tuple(scores),
        seconds=seconds,
        diverged_at=diverged_at,
        network=network,
    )


@torch.no_grad()
def predict(network: nn.Module, inputs: Tensor, *, batch: int) -> Tensor:
    """Return what the network says of the inputs in evaluation, a batch at a time."""
    was_training = network.training
    network.eval()
    device = device_of(network)
    said = torch.cat([network(part.to(device)).cpu() for part in inputs.split(batch)])
    network.train(was_training)
    return said


def device_of(network: nn.Module) -> torch.device:
    """Return where the network's parameters are."""
    return next(network.parameters()).device


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's random numbers, and put them back afterwards."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
