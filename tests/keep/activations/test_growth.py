"""How errors grow in expressions of several tensors: measured at some places, as at all of them."""

import pytest
import torch
from torch import Tensor

from elbowroom.keep.activations.entries import Entry, kept_entry
from elbowroom.keep.activations.growth import _expression_factors
from elbowroom.keep.activations.operators.expressions import (
    Constant,
    Elementwise,
    Expanded,
    Expression,
    Leaf,
    Permuted,
    Reshaped,
)


def entry_of(tensor: Tensor, error: float) -> Entry:
    entry = kept_entry(tensor)
    entry.is_open, entry.error = True, error
    return entry


def growth_of(expression: Expression, leaf: Leaf, error: float) -> float:
    """Of all values, by errors of this size one way and the other."""

    def moved(step: float) -> Tensor:
        return expression.apply(lambda each: each.value() + (step if each == leaf else 0.0))

    total = sum(float((moved(s) - moved(0.0)).square().mean()) / 2 for s in (error, -error))
    return total / error**2


@pytest.mark.parametrize("count", [8, 96])
def test_some_places_tell_what_all_do(count: int) -> None:
    torch.manual_seed(0)
    entry, other = entry_of(torch.randn(count, 5, 24), 0.2), entry_of(torch.randn(24), 0.0)
    x, gain = Leaf(entry), Expanded(Reshaped(Leaf(other), (1, 24)), (5, 24))
    turned = Permuted(Reshaped(x, (count, 24, 5)), (0, 2, 1))
    expression = Elementwise(
        torch.mul,
        (Elementwise(torch.add, (x, Constant(2.0))), Elementwise(torch.mul, (turned, gain))),
    )
    found = dict(_expression_factors(expression, {}))
    near = 1e-5 if count * 120 <= 4096 else 0.1
    assert found == {entry: pytest.approx(growth_of(expression, x, 0.2), rel=near)}


def test_a_tensor_that_is_read_twice_moves_in_both_places() -> None:
    torch.manual_seed(0)
    entry = entry_of(torch.randn(64, 24), 0.3)
    square = Elementwise(torch.mul, (Leaf(entry), Leaf(entry)))
    (found,) = dict(_expression_factors(square, {})).values()
    assert found == pytest.approx(4 * float(entry.values().square().mean()) + 0.3**2, rel=1e-3)
