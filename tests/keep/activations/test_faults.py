"""What goes wrong in real trainings: memory is let go, and the next step is right."""

import gc
import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from tests.keep.activations.checking import (
    TOLERANCES,
    error_of,
    gradients,
    matches,
    nothing_is_left,
)
from tests.keep.activations.models import loss_of, normed


def next_step_is_right(model: Any, room: er.Activations) -> None:
    plain = gradients(model, loss_of)
    ours = gradients(model, loss_of, room)
    matches(plain, ours, room.tolerance, near=0.1)
    nothing_is_left(room)


# Values.


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("share", ["one", "all"])
@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_values_that_are_not_finite(bad: float, share: str, tolerance: float) -> None:
    """In every refresh and measurement of a room; afterwards training goes on."""
    model: Any = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.Hardtanh()
    )

    def forward(model: Any) -> tuple[Tensor, ...]:
        x = torch.randn(8, 3, 24, 24)
        x[(slice(None) if share == "all" else 3), 1, 5] = bad
        return (model(x).square().mean(),)

    room = er.Activations(model, tolerance=tolerance)
    for seed in range(4):
        plain = gradients(model, forward, seed=seed)
        ours = gradients(model, forward, room, seed=seed)
        for a, b in zip(plain, ours, strict=True):
            assert a is not None
            assert b is not None
            if tolerance == 0:
                assert torch.allclose(a, b, 0, 0, equal_nan=True)
            else:
                assert torch.equal(a.isfinite(), b.isfinite())
        nothing_is_left(room)

    def sound(model: Any) -> tuple[Tensor, ...]:
        return (model(torch.randn(8, 3, 24, 24)).square().mean(),)

    ours = [gradients(model, sound, room, seed=seed) for seed in range(4)][-1]
    assert error_of(gradients(model, sound, seed=3), ours) < 0.5
    assert all(s.bound is None or 0 < s.bound < 1e3 for s in room._sites)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_overflow_under_autocast_with_a_scaler(dtype: torch.dtype, tolerance: float) -> None:
    """The first scale is far too large: steps are skipped alike, then both train."""
    losses: list[list[float]] = []
    scales: list[float] = []
    for compressed in (False, True):
        model = normed()
        room = er.Activations(model, tolerance=tolerance) if compressed else None
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**28, growth_interval=100)
        losses.append([])
        for step in range(24):
            torch.manual_seed(step % 4)
            x = torch.randn(128, 64)
            with room or nullcontext(), torch.autocast("cpu", dtype):
                loss = (model(x).float() - x.roll(1)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses[-1].append(float(loss.detach()))
        scales.append(scaler.get_scale())
        if room is not None:
            nothing_is_left(room)
            assert room.ledger.ratio > (1.2 if tolerance == 0 else 3)
    assert losses[0][-1] < losses[0][0]
    if dtype == torch.float16:
        assert scales[0] < 2.0**28
    if tolerance == 0:
        assert losses[0] == losses[1]
        assert scales[0] == scales[1]
    else:
        assert losses[1][-1] == pytest.approx(losses[0][-1], rel=0.05)


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_tiny_and_empty_batches(rows: int, tolerance: float) -> None:
    model: Any = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 256, 64),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(64, 8),
    )

    def forward(model: Any) -> tuple[Tensor, ...]:
        return (model(torch.randn(rows, 3, 32, 32)).square().sum(),)

    room = er.Activations(model, tolerance=tolerance)
    for seed in range(4):
        plain = gradients(model, forward, seed=seed)
        ours = gradients(model, forward, room, seed=seed)
        matches(plain, ours, tolerance, near=0.1)
        nothing_is_left(room)


# Change.


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_shapes_graphs_and_types_that_change(tolerance: float) -> None:
    """Every step another size, another path through the model, at times another type."""

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                y = layer(x)
                if float(y.detach().mean()) > 0:
                    x = functional.relu(y) + x
                elif y.shape[0] % 2:
                    x = functional.max_pool1d(functional.gelu(y)[None], 3, 1, 1)[0]
                else:
                    x = y.tanh() * functional.dropout(x, 0.5)
            return x

    torch.manual_seed(0)
    model = Branching()
    room = er.Activations(model, tolerance=tolerance)
    for seed, rows in enumerate((64, 7, 300, 1, 129, 64, 33, 65)):

        def forward(model: Any, rows: int = rows) -> tuple[Tensor, ...]:
            with torch.autocast("cpu", enabled=rows == 129):
                return (model(torch.randn(rows, 64)).float().square().sum(),)

        plain = gradients(model, forward, seed=seed)
        ours = gradients(model, forward, room, seed=seed)
        matches(plain, ours, tolerance, near=0.5)
        nothing_is_left(room)


def test_models_that_grow_shrink_and_freeze() -> None:
    model = normed()
    room = er.Activations(model, tolerance=0)
    for change in (
        lambda: model.append(nn.Linear(64, 64)),
        lambda: model[0].requires_grad_(False),
        lambda: model.__delitem__(1),
        lambda: model.half().float(),
        lambda: model.insert(1, nn.BatchNorm1d(64)),
        model.eval,
        lambda: setattr(model[0], "weight", nn.Parameter(torch.randn(64, 64))),
    ):
        next_step_is_right(model, room)
        change()
    next_step_is_right(model, room)


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("held", ["model", "room", "graph"])
def test_whoever_goes_first(tolerance: float, held: str) -> None:
    """The model, the room or the graph: the others work on, and in the end all are gone."""
    model = normed()
    plain = gradients(model, loss_of)
    room = er.Activations(model, tolerance=tolerance)
    seen = [weakref.ref(model), weakref.ref(room)]
    parameters = list(model.parameters())
    model.zero_grad()
    torch.manual_seed(1)
    with room:
        (loss,) = loss_of(model)
    if held == "model":
        del room
    elif held == "room":
        del model
    else:
        del model, room
    gc.collect()
    loss.backward()
    ours = [p.grad for p in parameters]
    matches(plain, ours, tolerance, near=0.1)
    model = room = loss = parameters = ours = None
    gc.collect()
    assert [reference() for reference in seen] == [None, None]


# Interruption.


class Stop(Exception):
    """Somebody's own."""


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("place", ["forward", "function", "backward", "hook"])
@pytest.mark.parametrize("installed", [False, True])
def test_interruptions(error: type[BaseException], place: str, installed: bool) -> None:
    """At the step that refreshes bounds and measures."""
    model = normed()
    room = er.Activations(model)
    if installed:
        room.install()

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            if place == "function":
                raise error("stop")
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            if place == "backward":
                raise error("stop")
            return gradients[0]

    def stop(*_: Any) -> Any:
        raise error("stop")

    context = nullcontext() if installed else room
    for fails in (False, True):
        handles = []
        if fails:
            handles.append(model[3].register_forward_hook(lambda _, __, out: Failing.apply(out)))
            if place == "forward":
                handles.append(model[4].register_forward_pre_hook(stop))
            if place == "hook":
                handles.append(model[0].weight.register_hook(stop))
        with pytest.raises(error, match="stop") if fails else nullcontext():
            with context:
                (loss,) = loss_of(model)
            loss.backward()
        for handle in handles:
            handle.remove()
    loss = None
    gc.collect()
    torch.ones(1, requires_grad=True).sum().backward()
    nothing_is_left(room)
    room.remove()
    next_step_is_right(model, room)


def test_a_failing_loss_leaves_the_room_open_for_nobody() -> None:
    """An installed room closes with its model, whatever comes after."""
    model = normed()
    room = er.Activations(model, tolerance=0)
    room.install()
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        functional.mse_loss(model(torch.randn(128, 64)) @ torch.ones(3, 3), torch.ones(1))
    nothing_is_left(room)
