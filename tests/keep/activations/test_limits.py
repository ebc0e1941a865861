"""Modules that are kept exact, tolerances by module, and what a room says of itself."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er


def network() -> nn.Sequential:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.GELU())
    head = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
    return nn.Sequential(body, head)


def train(model: nn.Module, passes: int = 6, **options: Any) -> er.Activations:
    room = er.Activations(model, meter=0, **options)
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(passes):
        x = torch.randn(256, 64, generator=generator)
        optimizer.zero_grad()
        with room:
            loss = (model(x) - x[:, :8].sin()).square().mean()
        loss.backward()
        optimizer.step()
    return room


def bounds(room: er.Activations) -> dict[str, float]:
    """The largest bound of each module."""
    found: dict[str, float] = {}
    for row in room.ledger.rows:
        found[row.layer] = max(row.bound, found.get(row.layer, 0.0))
    return found


def gradients(model: nn.Module, x: Tensor, room: Any = None) -> list[Tensor]:
    model.zero_grad()
    if room is None:
        loss = model(x).square().mean()
    else:
        with room:
            loss = model(x).square().mean()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_tensors_of_exact_modules_have_no_errors() -> None:
    for exact in (["1"], lambda m: [m[1]]):
        model = network()
        room = train(model, exact=exact(model) if callable(exact) else exact)
        found = bounds(room)
        assert any(bound > 0 for name, bound in found.items() if name.startswith("0"))
        assert all(bound == 0 for name, bound in found.items() if name.startswith("1"))
        assert "exact=['1']" in repr(room)


def test_all_that_is_exact_gives_the_same_bits() -> None:
    model, x = network(), torch.randn(256, 64)
    plain = gradients(model, x)
    ours = gradients(model, x, er.Activations(model, exact=[""]))
    assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))


def test_no_error_reaches_a_module_of_tolerance_zero() -> None:
    """The head comes last, so that errors of the body never come to its gradients."""
    model = network()
    room = train(model, tolerance={"1": 0.0})
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(5))
    plain, ours = gradients(model, x), gradients(model, x, room)
    count = len(list(model[0].parameters()))
    assert all(torch.equal(a, b) for a, b in zip(plain[count:], ours[count:], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))


def test_nothing_is_known_before_the_first_look() -> None:
    model, x = network(), torch.randn(256, 64)
    plain = gradients(model, x)
    ours = gradients(model, x, er.Activations(model, tolerance={"1": 0.0}))
    assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))


def test_a_smaller_tolerance_makes_smaller_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elbowroom.keep.activations.rules.WORTH", 0.0)
    loose = bounds(train(network(), tolerance={"": 0.1, "1": 0.1}))
    tight = bounds(train(network(), tolerance={"": 0.1, "1": 1e-5}))
    assert max(tight[name] for name in tight if name.startswith("1")) < max(
        loose[name] for name in loose if name.startswith("1")
    )


def test_a_room_says_what_it_does() -> None:
    model = network()
    room = er.Activations(model, overhead=0.25)
    assert repr(room) == (
        "Activations(Sequential, tolerance=0.1, overhead=0.25): no pass yet, next look at step 2"
    )
    room = train(model, passes=5)
    said = repr(room)
    assert "step 5, " in said and "saved as" in said and "next look at step 8" in said
    room.close()
    assert repr(room).endswith("closed after step 5")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tolerance": 2}, "tolerance must be a share"),
        ({"tolerance": {"1": "much"}}, "tolerance must be a share"),
        ({"tolerance": {"hed": 0.1}}, "no module of that name"),
        ({"exact": "1"}, "exact must be a list"),
        ({"exact": ["0.9"]}, "such as"),
        ({"exact": [3]}, "exact must hold modules"),
        ({"exact": [nn.Linear(2, 2)]}, "no part of the model"),
    ],
)
def test_limits_that_make_no_sense(options: dict[str, Any], said: str) -> None:
    with pytest.raises(er.InvalidArgument, match=said):
        er.Activations(network(), **options)
