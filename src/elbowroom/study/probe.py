"""The error that a treatment puts into the gradient, beside what a batch puts into it anyway."""

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from elbowroom.science.task import Task
from elbowroom.science.training import device_of, seeded

BATCHES = 6
SEED = 1_000_003  # of batches that no training draws first


def measure_error(
    network: nn.Module, task: Task, room: Any, *, batch: int, batches: int = BATCHES
) -> float | None:
    """Return the share of the gradient's own variance that the errors are; None if there is none.

    The network is a copy, so that its statistics stay as they are. `room` is a function that
    makes what the forward pass of the copy runs in.
    """
    twin = copy.deepcopy(network)
    inside = room(twin)
    draws = torch.Generator().manual_seed(SEED)
    exact: list[Tensor] = []
    wrong = 0.0
    for number in range(batches):
        pair = task.draw(batch, draws)
        truth = _gradient(twin, task, pair, nullcontext(), seed=number)
        wrong += float((_gradient(twin, task, pair, inside, seed=number) - truth).square().sum())
        exact.append(truth)
    mean = torch.stack(exact).mean(dim=0)
    own = sum(float((one - mean).square().sum()) for one in exact) / (batches - 1)
    return wrong / batches / own if own > 0 else None


def _gradient(
    network: nn.Module,
    task: Task,
    pair: tuple[Tensor, Tensor],
    room: AbstractContextManager[Any],
    *,
    seed: int,
) -> Tensor:
    device = device_of(network)
    inputs, targets = (part.to(device) for part in pair)
    network.zero_grad()
    with seeded(seed):
        with room:
            loss = task.loss(network(inputs), targets)
        loss.backward()
    grads = [p.grad for p in network.parameters() if p.grad is not None]
    return torch.cat([grad.flatten() for grad in grads]).double()
