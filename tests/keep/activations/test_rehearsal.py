"""Bounds of compiled parts: they follow from errors that are measured, and these are the truth."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from tests.keep.activations.checking import gradients, nothing_is_left
from tests.keep.activations.test_compiled import Network, breaks

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

TOLERANCE = 0.1


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled for one test is used by another."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch.compiler.reset()


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(Network(2), nn.Dropout(0.1), nn.Linear(64, 8))


Loss = Callable[[Any], Tensor]


def batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(128, 64)
    return x, x[:, :8] + torch.randn(128, 8)


def train(model: Any, room: er.Activations, passes: int, extra: Loss | None = None) -> None:
    for _ in range(passes):
        x, y = batch()
        if room._undo is None:
            with room:
                out = model(x)
        else:
            out = model(x)
        loss = (out - y).square().mean()
        if extra is not None:
            loss = loss + extra(model)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.02 * cast(Tensor, p.grad)
                p.grad = None


def share_of(model: Any, room: er.Activations) -> float:
    """The true error of a pass, as a share of the gradient's variance."""
    x, y = batch()

    def loss_of(m: Any) -> tuple[Tensor, ...]:
        return ((m(x) - y).square().mean(),)

    plain = gradients(model, loss_of)
    ours = gradients(model, loss_of, room)
    pairs = cast(Any, zip(plain, ours, strict=True))
    error = sum(float((a - b).square().sum()) for a, b in pairs)
    variance = sum(room._noise.variance(p) or 0.0 for p in model.parameters())
    return error / variance


def test_the_model_runs_again_and_the_prediction_is_true() -> None:
    model: Any = torch.compile(network(), backend="aot_eager", fullgraph=True)
    room = er.Activations(model, tolerance=TOLERANCE, refresh=50)
    train(model, room, 3)
    tight = room.ledger
    assert tight.gradient_error == 0
    train(model, room, 27)
    ledger = room.ledger
    assert ledger.ratio > 1.5 * tight.ratio
    assert 0 < ledger.gradient_error <= TOLERANCE
    # Nothing was compiled again, and passes are the user's own.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert breaks() == 0
    assert ledger.step == 30
    assert ledger.readings
    for reading in ledger.readings:
        assert reading.predicted / 2 < reading.measured < 2 * reading.predicted
    true = share_of(model, room)
    assert ledger.gradient_error / 2 < true < 2 * ledger.gradient_error
    train(model, room, 22)
    assert len(room.ledger.readings) > len(ledger.readings)
    nothing_is_left(room)


@pytest.mark.parametrize("way", ["in place", "installed", "installed in place", "outside", "parts"])
def test_ways_to_run_again(way: str) -> None:
    model: Any = network()
    forward: Any = model
    if "in place" in way:
        model.compile(backend="aot_eager")
    elif way == "parts":
        model[0].blocks[1] = torch.compile(model[0].blocks[1], backend="aot_eager")
    else:
        forward = torch.compile(model, backend="aot_eager")
    room = er.Activations(model if way == "outside" else forward, tolerance=TOLERANCE)
    if "installed" in way:
        room.install()
    train(forward, room, 2)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    tight = compiled_bounds(room)
    train(forward, room, 8)
    (reading,) = room.ledger.readings
    assert reading.predicted / 2 < reading.measured < 2 * reading.predicted < 2 * TOLERANCE
    loose = compiled_bounds(room)
    assert len(loose) == len(tight)
    assert sum(loose) > 2 * sum(tight)
    # A room that was closed goes on where it was.
    room.close()
    if "installed" in way:
        room.install()
    train(forward, room, 1)
    assert sum(compiled_bounds(room)) > 2 * sum(tight)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    room.close()
    nothing_is_left(room)


def compiled_bounds(room: er.Activations) -> list[float]:
    return [row.bound for row in room.ledger.rows if "compiled" in row.readers and row.bound > 0]


def test_what_cannot_be_repeated_is_not_measured() -> None:
    """A loss that reads weights itself, and a model that is called twice in a pass."""
    model: Any = torch.compile(network(), backend="aot_eager")
    room = er.Activations(model)
    weight = model._orig_mod[2].weight
    train(model, room, 6, lambda _: weight.square().sum())
    assert [e for e in room.ledger.events if "could not be repeated" in e]
    assert not room.ledger.readings
    assert room.ledger.gradient_error == 0

    room = er.Activations(model)
    for _ in range(6):
        with room:
            loss = model(torch.randn(128, 64)).sum() + model(torch.randn(128, 64)).sum()
        loss.backward()
    assert len(room.ledger.events) == 1
    assert not room.ledger.readings
