"""The small network: it learns, reproducibly, and names what autograd keeps."""

import pytest
import torch

from elbowroom.science.climate import rain, sample


@pytest.fixture(scope="module")
def task() -> rain.RainTask:
    return rain.make_task(sample())


def test_task_has_a_day_before_every_day(task: rain.RainTask) -> None:
    assert task.inputs.shape == (5, 5, 192, 288)
    assert task.wet.shape == (5, 192, 288)
    assert 0.5 < task.repeated < 1
    assert 0.2 < float(task.wet.mean()) < 0.6


def test_training_learns_and_repeats(task: rain.RainTask) -> None:
    steps: list[None] = []
    state = torch.random.get_rng_state()
    network = rain.train(task, steps=12, tell=lambda: steps.append(None))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert len(steps) == 12
    again = rain.train(task, steps=12)
    for one, other in zip(network.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    untrained = torch.nn.functional.binary_cross_entropy_with_logits(
        rain.make_network().eval()(task.inputs[-1:])[:, 0], task.wet[-1:]
    )
    trained = torch.nn.functional.binary_cross_entropy_with_logits(
        network.train()(task.inputs[-1:])[:, 0], task.wet[-1:]
    )
    assert trained < untrained
    assert 0 < rain.score(network, task) <= 1


def test_what_is_kept_is_what_autograd_saves(task: rain.RainTask) -> None:
    network = rain.make_network()
    x = task.inputs[-1:, :, :32, :32].contiguous()
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.detach().clone())
        return tensor

    network.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(x)
    kept = rain.kept_activations(network, x)
    assert list(kept) == ["conv1", "relu1", "conv2", "relu2", "conv3", "relu3"]
    for name, tensor in kept.items():
        found = [s for s in saved if s.shape == tensor.shape and torch.allclose(s, tensor)]
        assert found, name
