"""Errors of our own machinery: training goes on, and one sentence tells of each kind."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from elbowroom.errors import BudgetUnreachable
from elbowroom.keep.activations import (
    convolutions,
    entries,
    losses,
    passes,
    policy,
    returns,
    scratch,
    watch,
)
from elbowroom.keep.activations.derive import Derived
from elbowroom.keep.activations.faults import Faults
from elbowroom.keep.activations.noise import Noise
from elbowroom.keep.activations.returns import Returns
from elbowroom.keep.activations.room import Activations
from elbowroom.keep.activations.tally import Tally
from tests.keep.activations.checking import TOLERANCES, gradients, matches, nothing_is_left
from tests.keep.activations.random_networks import small_limits


class Broken(Exception):
    """What should not happen."""


def fail(*_: Any, **__: Any) -> Any:
    raise Broken("of our own")


def make_model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Dropout(0.3),
        nn.GELU(),
        nn.Conv2d(8, 5, 3, padding=1),
    )


def forward(model: Any) -> tuple[Tensor, ...]:
    x = torch.randn(6, 3, 16, 16)
    return (functional.cross_entropy(model(x), torch.randint(5, (6, 8, 8))),)


PLACES: dict[str, tuple[Any, str, str]] = {
    "taking a tensor": (passes, "identity_of", "was kept as it is"),
    "asking nodes": (passes, "slots_of", "were kept as they are"),
    "numbers of a node": (passes.Pass, "_record", "were kept as they are"),
    "choosing a form": (passes.Pass, "_choose", "was kept as it is"),
    "encoding": (policy, "encode", "was kept as it is"),
    "one bit a value": (passes, "pack_sign", ""),
    "deriving": (passes, "derive", "was kept as it is"),
    "making it from others": (Derived, "make", "was kept"),
    "adding up": (Tally, "close", "the ledger misses a pass"),
    "beginning": (Activations, "_start", "a pass was left alone"),
    "taking inputs": (watch, "tensors_in", ""),
    "handing it back": (Returns, "restore", "made again plainly"),
    "who reads it": (passes.Readers, "is_alone", "made again plainly"),
    "lending memory": (returns.Scratch, "over", "made again plainly"),
    "noting gradients": (Noise, "observe", "a gradient was not noted"),
    "deciding on bounds": (Activations, "_decide", "bounds are what they were"),
    "a loss in pieces": (losses.CrossEntropy, "apply", "a function was left to torch"),
}


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("place", PLACES)
def test_training_goes_on(
    place: str, tolerance: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner, name, sentence = PLACES[place]
    model = make_model()
    room = er.Activations(model, tolerance=tolerance, meter=0)
    with small_limits(in_pieces=True):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, fail)
            for seed in (1, 2, 3):
                plain = gradients(model, forward, seed=seed)
                ours = gradients(model, forward, room, seed=seed)
                matches(plain, ours, tolerance, near=0.1)
                nothing_is_left(room)
        # Whole again, the next pass is compressed.
        matches(gradients(model, forward), gradients(model, forward, room), tolerance, near=0.1)
        nothing_is_left(room)
        assert room.ledger.ratio > 1
    said = [r.getMessage() for r in caplog.records if "please report it" in r.getMessage()]
    assert len(said) == len(set(said)) <= 2
    if said:
        assert sentence in said[0]
        assert "failed (Broken: of our own): please report it" in said[0]
        assert any(event.startswith(said[0]) for event in room.ledger.events)
    elif tolerance > 0:
        assert place in ("one bit a value", "a loss in pieces")


WAYS: dict[str, Any] = {
    "gelu": torch.ops.aten.gelu_backward.default,
    "normalisation": torch.ops.aten.native_batch_norm_backward.default,
}


@pytest.mark.parametrize("kind", WAYS)
def test_an_operation_that_has_written_over_its_values_is_done_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way fails when it has spoilt what it was lent: the values are made anew."""
    calls: list[str] = []

    def spoil(given: Any, args: Any, kwargs: Any) -> Any:
        calls.append(kind)
        if isinstance(given, scratch.Scratch):
            given.plain.fill_(float("nan"))
        raise Broken("of our own")

    model = make_model()
    room = er.Activations(model, meter=0)
    for ways in (scratch.Scratch.ways, scratch.Shown.ways):
        if WAYS[kind] in ways:
            monkeypatch.setitem(cast(dict[Any, Any], ways), WAYS[kind], spoil)
    with small_limits(in_pieces=True):
        for seed in (1, 2):
            plain = gradients(model, forward, seed=seed)
            ours = gradients(model, forward, room, seed=seed)
            matches(plain, ours, 0.1, near=0.1)
    assert calls
    (event,) = room.ledger.events
    assert "an operation of backward was done plainly" in event
    assert f"({len(calls)} times)" in event
    nothing_is_left(room)


def test_a_convolution_that_cannot_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    room = er.Activations(model, meter=0)
    monkeypatch.setattr(convolutions, "count_pieces", fail)
    with small_limits(in_pieces=True):
        matches(gradients(model, forward), gradients(model, forward, room), 0.1, near=0.1)
    assert any("a convolution was computed in one go" in event for event in room.ledger.events)


# What is the user's.


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no more"),
        torch.OutOfMemoryError("no more"),
        BudgetUnreachable("no more"),
        KeyboardInterrupt("no more"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: no more"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("place", ["choosing a form", "handing it back"])
def test_errors_of_the_user_stay_what_they_are(
    place: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> Any:
        raise error

    owner, name, _ = PLACES[place]
    model = make_model()
    room = er.Activations(model, meter=0)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, stop)
        with pytest.raises(type(error), match="no more"), small_limits(in_pieces=False):
            gradients(model, forward, room)
    assert not room.ledger.events
    matches(gradients(model, forward), gradients(model, forward, room), 0.1, near=0.1)


def test_what_fails_plainly_too_is_not_told() -> None:
    """Classes out of range, and gradients of a wrong shape."""
    faults = Faults()
    with pytest.raises(ValueError, match="both ways"):
        faults.attempt("it", fail, lambda: _raise(ValueError("both ways")))
    assert not faults.events
    model: Any = nn.Linear(64, 600)
    room = er.Activations(model, tolerance=0)
    with room, pytest.raises(IndexError, match="out of bounds"):
        functional.cross_entropy(model(torch.randn(600, 64)), torch.full((600,), 700))
    assert not room.ledger.events


def _raise(error: Exception) -> None:
    raise error


def test_nothing_is_lost_by_a_decoding_that_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    room = er.Activations(model, meter=0)
    values: Callable[[Any], Tensor] = entries.Entry.values
    left = [1]

    def at_first(entry: Any) -> Tensor:
        if entry.raw is None and left and torch._C._current_graph_task_id() != -1:
            left.pop()
            raise Broken("of our own")
        return values(entry)

    plain = gradients(model, forward)
    monkeypatch.setattr(entries.Entry, "values", at_first)
    with small_limits(in_pieces=False):
        matches(plain, gradients(model, forward, room), 0.1, near=0.1)
    assert not left
    assert "made again plainly" in room.ledger.events[0]
    nothing_is_left(room)


def test_a_broken_room_is_as_good_as_none() -> None:
    with nullcontext():
        faults = Faults()
    for _ in range(3):
        with faults.around("a thing was not done, since doing it"):
            fail()
    assert faults.events == (
        "a thing was not done, since doing it failed (Broken: of our own): "
        "please report it (3 times)",
    )
