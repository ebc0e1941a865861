"""The loop: it learns, repeats for a seed, leaves the world alone, and bears any room."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from elbowroom.science.task import Batch, Schedule, Score, Task
from elbowroom.science.training import fit, predict, seeded, train


def draw(samples: int, generator: torch.Generator) -> Batch:
    x = torch.randn(samples, 4, generator=generator)
    return x, x.sum(dim=1, keepdim=True)


def score(network: nn.Module) -> Score:
    x, y = draw(64, torch.Generator().manual_seed(99))
    error = functional.mse_loss(predict(network, x, batch=16), y)
    return Score(name="error", value=float(error), baselines={"zero": 4.0}, higher_is_better=False)


SUMS = Task(name="sums", features=4, outputs=1, draw=draw, loss=functional.mse_loss, score=score)
SHORT = Schedule(steps=40, batch=16, learning_rate=0.05)


@dataclass(frozen=True, kw_only=True)
class Sums:
    schedule: Schedule = SHORT

    def make_task(self, folder: Path | None = None) -> Task:
        assert folder is None
        return SUMS

    def make_network(self, task: Task) -> nn.Module:
        return nn.Sequential(
            nn.Linear(task.features, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, task.outputs)
        )


def test_training_learns_and_repeats() -> None:
    state = torch.random.get_rng_state()
    first = train(Sums(), seed=5)
    torch.randn(7)
    second = train(Sums(), seed=5)
    third = train(Sums(), seed=6)
    assert first.losses == second.losses != third.losses
    assert first.score.value == second.score.value
    assert sum(first.losses[-5:]) < 0.5 * sum(first.losses[:5])
    assert first.score.beats_baselines()
    assert first.diverged_at is None and first.seconds > 0
    torch.random.set_rng_state(state)
    train(Sums(), seed=5)
    assert torch.equal(torch.random.get_rng_state(), state)


class Counting(nullcontext[None]):
    """Counts how often it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = 0

    def __enter__(self) -> None:
        assert torch.is_grad_enabled()
        self.entered += 1


def test_the_room_is_entered_once_a_step_and_knows_network_and_optimizer() -> None:
    made: list[Counting] = []

    def make_room(network: nn.Module, optimizer: torch.optim.Optimizer) -> Counting:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        assert held == {id(p) for p in network.parameters()}
        made.append(Counting())
        return made[-1]

    schedule = replace(SHORT, steps=7, score_every=3)
    result = train(Sums(schedule=schedule), room=make_room)
    assert [room.entered for room in made] == [7]
    assert [step for step, _ in result.scores] == [3, 6, 7]


def test_what_autograd_keeps_passes_through_the_room() -> None:
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor.clone()

    def make_room(*_: object) -> torch.autograd.graph.saved_tensors_hooks:
        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    recipe = Sums(schedule=replace(SHORT, steps=5))
    assert train(recipe, room=make_room).losses == train(recipe).losses
    assert len(kept) >= 5 * 3


def test_a_loss_that_is_not_finite_ends_the_run_with_the_last_good_network() -> None:
    steps = 0

    def explode(said: Tensor, truth: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        loss = functional.mse_loss(said, truth)
        return loss * float("nan") if steps == 4 else loss

    with seeded(0):
        network = Sums().make_network(SUMS)
    result = fit(network, replace(SUMS, loss=explode), SHORT)
    assert result.diverged_at == 3
    assert len(result.losses) == 4
    assert all(p.isfinite().all() for p in network.parameters())
    assert result.scores[-1][0] == 3 and result.score.value > 0


def test_the_gradient_is_clipped() -> None:
    norms: list[float] = []
    network = Sums().make_network(SUMS)

    class Watching(torch.optim.SGD):
        def step(self, *_: object) -> None:  # type: ignore[override]
            grads = [p.grad for p in network.parameters() if p.grad is not None]
            norms.append(float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in grads]))))

    optimizer = Watching(network.parameters(), 0.1)
    fit(network, SUMS, replace(SHORT, steps=3, clip=1e-3), optimizer=optimizer)
    assert len(norms) == 3
    assert all(norm == pytest.approx(1e-3, rel=1e-3) for norm in norms)


def test_predict_evaluates_in_batches_and_puts_the_mode_back() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    for training in (True, False):
        network.train(training)
        said = predict(network, x, batch=3)
        torch.testing.assert_close(said, network[0](x).detach())
        assert network.training is training and not said.requires_grad
