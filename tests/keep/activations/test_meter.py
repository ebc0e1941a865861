"""The meter: what it measures is what happens, and it is believed."""

import copy
import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations import reruns, rules
from elbowroom.keep.activations.schedule import is_due


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.ReLU()
    )


def flat(model: Any, x: Tensor, room: Any = None) -> Tensor:
    model.zero_grad()
    if room is None:
        loss = model(x).square().sum()
    else:
        with room:
            loss = model(x).square().sum()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_parts_too_small_to_encode_are_measured_all_the_same() -> None:
    """An eighth of the batch is below the size at which tensors are encoded at all."""
    model = network()
    torch.manual_seed(3)
    room = er.Activations(model)
    for x in torch.randn(8, 128, 64):
        flat(model, x, room)
    assert room.ledger.readings
    assert all(reading.measured > 0 for reading in room.ledger.readings)


class Steep(torch.autograd.Function):
    """Its slope changes so fast that errors of its input do far more than anybody would guess."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (20 * x).tanh() / 20

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * (1 - (20 * x).tanh().square())


class WithSteep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 256), nn.Linear(256, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Steep.apply(self.first(x)))


def test_an_error_above_the_tolerance_is_brought_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows where the tolerance is spent to its end, and is told once."""
    monkeypatch.setattr(rules, "WORTH", 0.0)
    monkeypatch.setattr(rules, "NOISY", math.inf)
    monkeypatch.setattr(rules, "EACH", math.inf)
    torch.manual_seed(0)
    model = WithSteep()
    room = er.Activations(model, tolerance=0.02, meter=8)
    for x in torch.randn(60, 96, 64, generator=torch.Generator().manual_seed(3)):
        flat(model, x, room)
    readings = [reading.measured for reading in room.ledger.readings]
    assert max(readings) > 0.03
    assert readings[-1] < 0.03
    assert sum("times tighter" in event for event in room.ledger.events) == 1


def true_error(model: nn.Module, twin: nn.Module, run: Any, room: Any) -> float:
    """Of a pass, as a share of the variance that the room counts with."""
    twin.load_state_dict(model.state_dict())
    twin.zero_grad()
    model.zero_grad()
    state = torch.get_rng_state()
    run(twin, nullcontext())
    torch.set_rng_state(state)
    run(model, room)
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    error = sum(
        float((a.grad - b.grad).abs().square().sum())
        for a, b in pairs
        if a.grad is not None and b.grad is not None
    )
    return error / sum(room._noise.variance(p) or 1e9 for p in model.parameters())


def compare(model: nn.Module, run: Any, passes: int = 14, **options: Any) -> list[float]:
    """What the meter reads over what is true."""
    twin = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    how: dict[str, Any] = {"meter": 2, **options}
    room = er.Activations(model, optimizer=optimizer, **how)
    ratios: list[float] = []
    for step in range(1, passes):
        truth = true_error(model, twin, lambda m, c, step=step: run(m, c, step), room)
        optimizer.step()
        if room.ledger.readings and room.ledger.readings[-1].step == step:
            ratios.append(room.ledger.readings[-1].measured / truth)
    assert len(ratios) > 2
    return ratios


class Classifier(nn.Module):
    """Returns a loss, alone or with what it was made of, as models of transformers do."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.body = nn.Sequential(
            *(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1)),
            *(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 16)),
        )

    def forward(self, x: Tensor, target: Tensor | None = None) -> Any:
        logits = self.body(x)
        if target is None:
            return logits
        reduction = "sum" if self.kind == "sum" else "mean"
        loss = functional.cross_entropy(logits, target, reduction=reduction)
        if self.kind == "penalised":
            return {"loss": loss, "logits": logits}
        return {"loss": loss, "logits": logits} if self.kind == "both" else loss


@pytest.mark.parametrize("kind", ["loss", "sum", "both", "penalised", "outside"])
def test_the_meter_reads_the_truth(kind: str) -> None:
    torch.manual_seed(0)
    weights = torch.randn(64, 16)

    def run(model: nn.Module, context: Any, step: int) -> None:
        x = torch.randn(192, 64, generator=torch.Generator().manual_seed(step))
        target = (x @ weights).argmax(1)
        with context:
            found: Any = model(x) if kind == "outside" else model(x, target)
            if kind == "outside":
                found = functional.cross_entropy(found, target)
        if kind == "penalised":
            # The logits get a gradient of their own, beside that of the loss.
            found = {"loss": found["loss"] + found["logits"].square().mean()}
        (found["loss"] if isinstance(found, dict) else found).backward()

    ratios = compare(Classifier(kind), run)
    assert all(0.4 < ratio < 2.5 for ratio in ratios), ratios


def test_a_recurrent_model_is_cut_along_its_samples() -> None:
    """They stand on the second axis."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(32, 64), nn.Linear(64, 32)

        def forward(self, x: Tensor, state: Any = None) -> Any:
            y, state = self.lstm(x, state)
            return functional.gelu(self.out(y)), state

    def run(model: nn.Module, context: Any, step: int) -> None:
        x = torch.randn(20, 48, 32, generator=torch.Generator().manual_seed(step))
        with context:
            y, _ = model(x)
        (y - x).square().mean().backward()

    torch.manual_seed(0)
    ratios = compare(Recurrent(), run)
    assert 0.4 < sorted(ratios)[len(ratios) // 2] < 2.5


class Waves(nn.Module):
    """Mixes frequencies by complex weights, as neural operators do."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.drop = nn.Linear(1, 16), nn.Linear(16, 1)
        self.mix = nn.Parameter(torch.randn(16, 16, 12, dtype=torch.cfloat) / 16)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.lift(x)).movedim(1, 2)
        spectrum = torch.fft.rfft(y)[..., :12]
        mixed = torch.einsum("bif,iof->bof", spectrum, self.mix)
        return self.drop(functional.gelu(torch.fft.irfft(mixed, n=y.shape[-1])).movedim(1, 2))


def test_complex_parameters_count_with_both_parts() -> None:
    def run(model: nn.Module, context: Any, step: int) -> None:
        x = torch.randn(36, 64, 1, generator=torch.Generator().manual_seed(step))
        with context:
            y = model(x)
        (y - x.roll(3, 1)).square().mean().backward()

    torch.manual_seed(0)
    ratios = compare(Waves(), run, passes=26)
    assert 0.3 < sorted(ratios)[len(ratios) // 2] < 3


class Counting(nn.Module):
    """Statistics over the batch, and a buffer that counts calls and goes into the output."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8)),
        )
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layers(x) * self.calls


def test_both_runs_of_the_meter_find_the_buffers_of_the_pass() -> None:
    """Otherwise the second one would differ by far more than errors do."""
    torch.manual_seed(0)
    model, weights = Counting(), torch.randn(3, 8)
    room = er.Activations(model, tolerance=1e-4, meter=2)
    for step in range(1, 14):
        x = torch.randn(32, 3, 24, 24, generator=torch.Generator().manual_seed(step))
        model.zero_grad()
        with room:
            y = model(x) / step
        functional.cross_entropy(y, (x.mean((2, 3)) @ weights).argmax(1)).backward()
        assert float(model.calls) == step
    assert len(room.ledger.readings) > 2
    assert all(reading.measured < 0.01 for reading in room.ledger.readings)


@pytest.mark.parametrize("place", [0, 95])
def test_samples_with_large_gradients_do_not_mislead_the_meter(place: int) -> None:
    """A few samples have most of the gradient: those that are run again, or others."""

    def run(model: nn.Module, context: Any, step: int) -> None:
        x = torch.randn(96, 64, generator=torch.Generator().manual_seed(step))
        factor = torch.ones(96, 1)
        factor[max(0, place - 7) : place + 8] = 6.0
        with context:
            y = model(x)
        ((y - x[:, :16]).square() * factor).mean().backward()

    torch.manual_seed(0)
    ratios = compare(Classifier("outside"), run)
    assert 0.4 < sorted(ratios)[len(ratios) // 2] < 2.5, ratios


def test_a_look_runs_few_samples_again() -> None:
    """At most a tenth of the batch, plainly and encoded, and never in the pass of another look."""
    model = Classifier("loss")
    counts: dict[int, list[int]] = {}
    model.body.register_forward_hook(lambda m, x, y: counts.setdefault(step, []).append(len(y)))
    room = er.Activations(model, meter=4)
    for step in range(1, 41):
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(step))
        with room:
            loss = model(x, x[:, :16].argmax(1))
        loss.backward()
    metered = [step for step in counts if len(counts[step]) > 1]
    assert len(metered) > 4
    assert not [step for step in metered if is_due(step, 100)]
    assert all(sum(counts[step][1:]) <= 2 * 64 / 10 for step in metered)


def test_large_gradients_are_compared_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both would wait beside the user's own; values from all over the gradient say as much."""
    monkeypatch.setattr(reruns, "_COMPARED", 2048)
    torch.manual_seed(0)
    weights = torch.randn(64, 16)

    def run(model: nn.Module, context: Any, step: int) -> None:
        x = torch.randn(192, 64, generator=torch.Generator().manual_seed(step))
        with context:
            loss = model(x, (x @ weights).argmax(1))
        loss.backward()

    ratios = compare(Classifier("loss"), run)
    assert all(0.4 < ratio < 2.5 for ratio in ratios), ratios


class Neighbours(nn.Module):
    """Nodes of a graph read one another: none of them can be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        y = functional.gelu(self.first(x))
        y = torch.zeros_like(y).index_add(0, edges[1], y[edges[0]])
        return self.last(functional.gelu(y))


def test_a_graph_is_not_cut_and_that_is_told_once() -> None:
    torch.manual_seed(0)
    model = Neighbours()
    counts: list[int] = []
    model.first.register_forward_hook(lambda m, x, y: counts.append(len(y)))
    room = er.Activations(model)
    for step in range(40):
        x = torch.randn(300, 32, generator=torch.Generator().manual_seed(step))
        with room:
            y = model(x, torch.randint(300, (2, 900)))
        y.square().mean().backward()
    assert set(counts) == {300}
    # Whole batches run again rarely, if at all.
    assert len(counts) <= 40 + 2 * 2
    assert sum("cannot be cut" in event for event in room.ledger.events) == 1


def test_backward_inside_of_the_room_is_measured_too() -> None:
    """The plain run is plain there as well."""
    torch.manual_seed(0)
    weights = torch.randn(64, 16)

    def run(model: nn.Module, context: Any, step: int) -> None:
        x = torch.randn(192, 64, generator=torch.Generator().manual_seed(step))
        with context:
            model(x, (x @ weights).argmax(1)).backward()

    ratios = compare(Classifier("loss"), run)
    assert all(0.4 < ratio < 2.5 for ratio in ratios), ratios


def test_a_model_without_trainable_parameters_is_left_alone() -> None:
    model = network().requires_grad_(False)
    room = er.Activations(model)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(128, 64, requires_grad=True)
        with room:
            loss = model(x).square().sum()
        loss.backward()
        assert x.grad is not None
    assert not room.ledger.events
