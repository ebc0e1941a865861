"""What comes from outside of a model is told from what its outputs hand on to one another."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from elbowroom.keep.activations.roots import Arrivals


def outputs_of(x: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    hidden = nn.Linear(8, 8)(x).tanh()
    logits = nn.Linear(8, 4)(hidden)
    loss = functional.cross_entropy(logits.view(-1, 4), torch.zeros(len(x), dtype=torch.int64))
    return [loss, logits, hidden]


def arrive(loss_of: Callable[[list[Tensor]], Tensor]) -> Arrivals:
    outputs = outputs_of(torch.randn(6, 8, generator=torch.Generator().manual_seed(1)))
    count = [0]

    def arrived() -> None:
        count[0] += 1

    arrivals = Arrivals(outputs, lambda g: g[:2] if g.dim() else g, arrived)
    loss_of(outputs).backward()
    assert count[0] > 0
    return arrivals


def test_steps_on_the_way_to_the_loss_get_nothing() -> None:
    found = arrive(lambda outputs: 3 * outputs[0])
    assert found.gradients[0] == 3
    assert found.gradients[1:] == [None, None]
    assert not found.are_all_roots


def test_what_comes_beside_the_loss_is_the_difference() -> None:
    found = arrive(
        lambda outputs: outputs[0] + 5 * outputs[1].sum() + outputs[2].square().sum() / 2
    )
    hidden = outputs_of(torch.randn(6, 8, generator=torch.Generator().manual_seed(1)))[2]
    assert found.gradients[0] == 1
    assert found.gradients[1] is not None
    assert found.gradients[2] is not None
    torch.testing.assert_close(found.gradients[1], torch.full((2, 4), 5.0))
    torch.testing.assert_close(found.gradients[2], hidden[:2].detach())


def test_outputs_apart_are_all_roots() -> None:
    x = torch.randn(6, 8, requires_grad=True)
    outputs = [x * 2, x * 3]
    arrivals = Arrivals(outputs, lambda g: g[:1], lambda: None)
    (outputs[0].sum() + outputs[1].sum()).backward()
    assert arrivals.are_all_roots
    assert arrivals.energies == pytest.approx([48.0, 48.0])
    assert all(g is not None and g.shape == (1, 8) for g in arrivals.gradients)
    arrivals.forget()
    assert not arrivals.handles
