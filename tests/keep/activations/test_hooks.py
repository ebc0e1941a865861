"""The traps of hooks for saved tensors, beside what plain autograd does."""

import gc
import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import elbowroom as er
from tests.keep.activations.checking import TOLERANCES, gradients, matches, nothing_is_left
from tests.keep.activations.models import loss_of, smooth

# In-place changes, which hooks hide from autograd.

CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda y: y.mul_(2),
    "a view": lambda y: y.view(-1)[5:9].zero_(),
    "the base of a view": lambda y: y.detach().t().add_(1),
    "by an index": lambda y: y.detach().__setitem__((0, 0), 1.0),
    "by copying": lambda y: y.copy_(torch.zeros_like(y)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("rows", [2, 256])
def test_in_place_changes_raise_what_plain_autograd_raises(
    change: str, tolerance: float, rows: int
) -> None:
    model: Any = nn.Linear(64, 64)
    x = torch.randn(rows, 64)

    def step(room: Any) -> str:
        with room:
            y = model(x).sigmoid()
            loss = (y.exp() * y).sum()
            CHANGES[change](y)
            del y
        with pytest.raises(RuntimeError) as caught:
            loss.backward()
        # Which node made the tensor last, only plain autograd can tell.
        return re.sub(r"output 0 of \S+,", "", str(caught.value).split(" Hint")[0])

    room = er.Activations(model, tolerance=tolerance)
    assert step(nullcontext()) == step(room)
    # The exception's own frames.
    gc.collect()
    # The engine itself lets go of a broken backward when the next one runs.
    torch.ones(1, requires_grad=True).sum().backward()
    nothing_is_left(room)


def test_changes_of_parameters_raise_too() -> None:
    model = smooth()
    with er.Activations(model):
        (loss,) = loss_of(model)
    with torch.no_grad():
        model[2].weight.mul_(0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_changes_that_hurt_nobody_are_allowed(tolerance: float) -> None:
    """Of tensors that backward does not read, and between two saves."""
    model = smooth()

    def forward(model: Any) -> tuple[Tensor, ...]:
        y = model(torch.randn(128, 64))
        z = y * 3 + 1
        first = z.detach().clone()
        z += first
        loss = z.sin().sum()
        z.detach()
        y.detach()
        return (loss,)

    plain = gradients(model, forward)
    room = er.Activations(model, tolerance=tolerance)
    matches(plain, gradients(model, forward, room), tolerance)


def test_saved_tensors_are_not_changed() -> None:
    model = smooth()
    held: list[tuple[Tensor, int, Tensor]] = []
    for layer in model:
        layer.register_forward_hook(
            lambda _, __, out: held.append((out, out._version, out.detach().clone()))
        )
    with er.Activations(model):
        (loss,) = loss_of(model)
    loss.backward()
    assert len(held) == 4
    assert all(t._version == version and torch.equal(t, copy) for t, version, copy in held)


# Memory.


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("ending", ["dropped", "backward", "failed"])
def test_no_cycle_keeps_memory(tolerance: float, ending: str) -> None:
    """Without the garbage collector: nothing that autograd holds may hold its own graph."""
    model = smooth()
    room = er.Activations(model, tolerance=tolerance)
    storages: list[StorageWeakRef] = []
    for layer in model:
        layer.register_forward_hook(
            lambda _, __, out: storages.append(StorageWeakRef(out.untyped_storage()))
        )
    (loss_of(model)[0]).backward()
    storages.clear()
    gc.collect()
    gc.disable()
    try:
        with room:
            (loss,) = loss_of(model)
            if ending == "failed":
                with pytest.raises(RuntimeError):
                    model(torch.randn(3, 3))
        if ending == "backward":
            loss.backward()
        del loss
        assert len(storages) >= 4
        assert all(storage.expired() for storage in storages)
        nothing_is_left(room)
    finally:
        gc.enable()


def test_encoded_tensors_leave_during_forward() -> None:
    """What was encoded is not held beside its blob."""
    model: Any = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)])
    room = er.Activations(model)
    storages: list[StorageWeakRef] = []
    alive: list[int] = []

    def count(_: Any, __: Any, out: Tensor) -> None:
        storages.append(StorageWeakRef(out.untyped_storage()))
        alive.append(sum(not s.expired() for s in storages))

    for layer in model:
        layer[1].register_forward_hook(count)
    with room:
        loss = model(torch.randn(256, 64)).sum()
    assert max(alive) <= 2
    loss.backward()


def test_backward_makes_one_tensor_at_a_time() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)])
    room = er.Activations(model)
    with room:
        loss = model(torch.randn(256, 64)).sum()
    plain = room.ledger.rows[0].saved_bytes
    held = room.ledger.kept_bytes
    loss.backward()
    assert room.ledger.peak_bytes <= held + 2 * plain


def test_addresses_that_are_used_again() -> None:
    """An allocator hands out the same address many times: it is no identity."""
    model: Any = nn.Linear(64, 64)
    torch.manual_seed(0)
    xs = [torch.randn(128, 64) for _ in range(40)]

    def forward(model: Any) -> tuple[Tensor, ...]:
        total = torch.zeros(())
        for x in xs:
            total = total + (model(x).detach() * model(x)).cos().mean()
        return (total,)

    plain = gradients(model, forward)
    for tolerance in TOLERANCES:
        room = er.Activations(model, tolerance=tolerance)
        matches(plain, gradients(model, forward, room), tolerance)
        nothing_is_left(room)


def test_a_callers_input_that_dies_early_hides_nothing() -> None:
    """Its address may go to an activation, which is to be compressed all the same."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, parts: list[Tensor]) -> Tensor:
            y = self.layer(parts.pop().to(torch.float32))
            for _ in range(6):
                y = self.layer(y).tanh()
            return y

    model = Inner()
    room = er.Activations(model)
    with room:
        loss = model([torch.randn(128, 64, dtype=torch.float64)]).sum()
    held = sum(row.saved_bytes for row in room.ledger.rows)
    assert held >= 6 * 128 * 64 * 4
    loss.backward()


# Hooks of others.


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("theirs", ["inside", "outside"])
@pytest.mark.parametrize("kind", ["counting", "save_on_cpu"])
def test_hooks_of_others(tolerance: float, theirs: str, kind: str) -> None:
    """The innermost alone are called, as everywhere in torch."""
    model = smooth()
    plain = gradients(model, loss_of)
    room = er.Activations(model, tolerance=tolerance)
    calls: list[int] = []

    def count(t: Tensor) -> Tensor:
        calls.append(1)
        return t

    def hooks() -> Any:
        return save_on_cpu() if kind == "save_on_cpu" else saved_tensors_hooks(count, lambda t: t)

    def forward(model: Any) -> tuple[Tensor, ...]:
        if theirs == "outside":
            return loss_of(model)
        hidden = model[1](model[0](torch.randn(128, 64)))
        with hooks():
            return (model[3](model[2](hidden)).square().sum(),)

    with hooks() if theirs == "outside" else nullcontext():
        ours = gradients(model, forward, room)
    matches(plain, ours, tolerance)
    nothing_is_left(room)
    assert room.ledger.saved_bytes > 0
    if kind == "counting":
        assert bool(calls) == (theirs == "inside")


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("place", ["around", "within"])
def test_checkpoints(tolerance: float, reentrant: bool, place: str) -> None:
    """Around a region a room sees the region's input; within, the region still runs again."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(64, 64), smooth(), nn.Linear(64, 64))
    runs: list[int] = []
    model[1].register_forward_pre_hook(lambda *_: runs.append(1))
    room = er.Activations(model, tolerance=tolerance)

    def region(hidden: Tensor) -> Tensor:
        with room if place == "within" else nullcontext():
            return model[1](hidden)

    def forward(model: Any) -> tuple[Tensor, ...]:
        hidden = model[0](torch.randn(128, 64)).sigmoid()
        hidden = checkpoint(region, hidden, use_reentrant=reentrant)
        return (model[2](hidden).square().sum(),)

    place, wanted = "around", place
    plain = gradients(model, forward)
    place = wanted
    runs.clear()
    ours = gradients(model, forward, room if place == "around" else None)
    matches(plain, ours, tolerance)
    assert len(runs) == 2
    nothing_is_left(room)
    if place == "around":
        names = {row.name.split(":")[0] for row in room.ledger.rows}
        assert not any(name.startswith("1.") for name in names)
        kinds = {row.method for row in room.ledger.rows}
        assert ("encode" in kinds) == (tolerance > 0)


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_backwards_decode_every_time(tolerance: float) -> None:
    model = smooth()
    plain = gradients(model, loss_of)
    room = er.Activations(model, tolerance=tolerance)
    torch.manual_seed(1)
    with room:
        (loss,) = loss_of(model)
    for last in (False, False, True):
        model.zero_grad()
        loss.backward(retain_graph=not last)
        matches(plain, [p.grad for p in model.parameters()], tolerance)
        assert (room._tally.held_bytes == 0) == last
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_penalties_on_gradients(tolerance: float) -> None:
    """Double backward, with the inner gradient taken inside and outside of the room."""
    model = smooth()

    def forward(model: Any, inside: bool = True) -> tuple[Tensor, ...]:
        x = torch.randn(128, 64, requires_grad=True)
        room = er.Activations(model, tolerance=tolerance) if not inside else nullcontext()
        with room:
            y = model(x).sum()
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        return ((slope.norm(dim=1) - 1).square().sum() + y * 0.01, x)

    plain = gradients(model, forward)
    room = er.Activations(model, tolerance=tolerance)
    ours = gradients(model, forward, room)
    for found in (ours, gradients(model, lambda m: forward(m, False))):
        matches(plain, found, tolerance, near=0.05)
    nothing_is_left(room)
