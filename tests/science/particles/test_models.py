"""Networks for jets and tables: one logit a sample, and gradients everywhere."""

import pytest
import torch
from torch import nn

from elbowroom.science.particles.models import JetCNN, Perceptron


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (JetCNN(widths=(4, 8)), (3, 1, 30, 30)),
        (JetCNN(channels=2, widths=(4,)), (3, 2, 17, 40)),
        (Perceptron(features=7, width=8, layers=2), (3, 7)),
    ],
    ids=["jets", "other jets", "table"],
)
def test_one_logit_a_sample(network: nn.Module, shape: tuple[int, ...]) -> None:
    said = network(torch.randn(shape))
    assert said.shape == (3,)
    said.square().sum().backward()
    assert all(p.grad is not None for p in network.parameters())
