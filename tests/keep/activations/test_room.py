"""Activations from outside: gradients, ratios, the ledger, arguments."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from tests.keep.activations.checking import matches
from tests.keep.activations.models import (
    MODELS,
    Transformer,
    convolutional,
    images,
    make,
    run,
    tokens,
    train,
)


@pytest.mark.parametrize("name", MODELS)
def test_tolerance_zero_has_the_same_bits(name: str) -> None:
    model, x, y = make(name)
    twin = copy.deepcopy(model)
    loss, plain = run(twin, x, y)
    room = er.Activations(model, tolerance=0)
    same, kept = run(model, x, y, room)
    assert torch.equal(loss, same)
    assert plain.keys() == kept.keys()
    for parameter, gradient in plain.items():
        assert torch.equal(gradient, kept[parameter]), parameter
    for (key, mine), theirs in zip(
        model.state_dict().items(), twin.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs), key
    assert room.ledger.kept_bytes <= room.ledger.saved_bytes


@pytest.mark.parametrize(("name", "least"), [("convolutional", 1.2), ("transformer", 1.9)])
def test_exact_mode_saves_memory_too(name: str, least: float) -> None:
    model, x, y = make(name)
    room = er.Activations(model, tolerance=0)
    run(model, x, y, room)
    assert room.ledger.ratio > least


@pytest.mark.parametrize("name", MODELS)
def test_first_pass_is_close_and_small(name: str) -> None:
    model, x, y = make(name)
    _, plain = run(copy.deepcopy(model), x, y)
    room = er.Activations(model)
    _, lossy = run(model, x, y, room)
    error = sum(float((plain[n] - lossy[n]).square().sum()) for n in plain)
    size = sum(float(g.square().sum()) for g in plain.values())
    assert 0 < error < 0.02 * size
    # A GRU's steps save thousands of tensors too small to be worth it.
    assert room.ledger.ratio > {"gru": 1.2}.get(name, 4)


@pytest.mark.parametrize("name", ["convolutional", "upward", "transformer", "explicit attention"])
def test_training_reaches_a_high_ratio_within_the_tolerance(name: str) -> None:
    model, x, y = make(name)
    x, y = (torch.cat([v, v]) for v in (x, y))
    room = er.Activations(model)
    losses = train(model, x, y, room, 34)
    assert losses[-1] < losses[0]
    ledger = room.ledger
    # Of the small one every parameter's own share of the tolerance takes more bits.
    assert ledger.ratio > {"upward": 7.5}.get(name, 9)
    assert 0 < ledger.gradient_error <= 0.1001
    assert ledger.readings
    # The meter and the prediction agree in size; single readings on tiny batches scatter.
    ratios = sorted(r.measured / r.predicted for r in ledger.readings)
    assert 1 / 6 < ratios[len(ratios) // 2] < 6


def test_nothing_but_the_gradient_changes() -> None:
    model, x, y = make("convolutional")
    twin = copy.deepcopy(model)
    room = er.Activations(model, meter=2)
    for _ in range(6):
        torch.manual_seed(3)
        functional.cross_entropy(twin(x), y).backward()
        plain = torch.get_rng_state()
        torch.manual_seed(3)
        with room:
            loss = functional.cross_entropy(model(x), y)
        loss.backward()
        assert torch.equal(plain, torch.get_rng_state())
    for (key, mine), theirs in zip(
        model.state_dict().items(), twin.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs), key


def test_masks_are_exact_at_any_bound() -> None:
    """Of conv - relu, the gradient that passes the relu is the exact one."""
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
    x = torch.randn(4, 3, 32, 32, requires_grad=True)
    model: Any = nn.Sequential(first, nn.ReLU(), second)
    (plain,) = torch.autograd.grad(model(x).square().sum(), x)
    room = er.Activations(model)
    with room:
        loss = model(x)
    for site in room._sites:
        site.bound = 0.7
    with room:
        out = model(x)
    # Exact from above the loss, so that only masks stand between.
    (lossy,) = torch.autograd.grad(out, x, 2 * out.detach())
    assert torch.equal(plain, lossy)
    del loss


def test_shared_saves_are_held_once() -> None:
    model, x, y = make("convolutional")
    room = er.Activations(model)
    run(model, x, y, room)
    shared = [r for r in room.ledger.rows if len(r.readers) > 1 and r.method == "encode"]
    assert any({"Relu.result", "Convolution.input"} <= set(r.readers) for r in shared)


def test_parameters_inputs_and_buffers_are_not_held() -> None:
    model, x, y = make("convolutional")
    room = er.Activations(model)
    run(model, x, y, room)
    readers = {reader for row in room.ledger.rows for reader in row.readers}
    assert "Convolution.weight" not in readers
    inputs = [r for r in room.ledger.rows if r.shape == tuple(x.shape)]
    assert not inputs


def test_autocast_copies_of_weights_are_left_alone() -> None:
    model, x, y = make("convolutional")
    with torch.autocast("cpu", torch.bfloat16):
        room = er.Activations(model)
        run(model, x, y, room)
    assert room.ledger.ratio > 2
    readers = {reader for row in room.ledger.rows for reader in row.readers}
    assert not readers & {"Convolution.weight", "Addmm.mat2"}


@pytest.mark.parametrize("frozen", [False, True])
def test_autocast_gradients_are_right(frozen: bool) -> None:
    model, x, y = make("transformer")
    if frozen:
        model.blocks[0].requires_grad_(False)
    twin = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        _, plain = run(twin, x, y)
        _, exact = run(model, x, y, er.Activations(model, tolerance=0))
        _, lossy = run(model, x, y, er.Activations(model))
    for name, gradient in plain.items():
        assert torch.equal(gradient, exact[name]), name
    error = sum(float((plain[n] - lossy[n]).square().sum()) for n in plain)
    assert error < 0.05 * sum(float(g.square().sum()) for g in plain.values())


def test_decorator() -> None:
    model, x, y = make("upward")
    room = er.Activations(model, tolerance=0)

    @room
    def forward() -> Tensor:
        """Documented."""
        return functional.cross_entropy(model(x), y)

    forward().backward()
    assert forward.__doc__ == "Documented."
    assert room.ledger.saved_bytes > 0


def test_nested_use_counts_once() -> None:
    model, x, y = make("upward")
    room = er.Activations(model, tolerance=0)
    with room, room:
        loss = functional.cross_entropy(model(x), y)
    loss.backward()
    assert room.ledger.step == 1


def test_peak_is_far_below_what_autograd_would_hold() -> None:
    model, x, y = convolutional(), *images(32, 32)
    room = er.Activations(model)
    train(model, x, y, room, 20)
    assert room.ledger.peak_bytes < room.ledger.saved_bytes / 3


def test_ledger_reads_well() -> None:
    model, x, y = Transformer(), *tokens()
    room = er.Activations(model)
    run(model, x, y, room)
    text = str(room.ledger)
    assert "saved" in text
    assert "Gelu.self" in text
    assert room.ledger.to_json().startswith("{")


def test_totals_are_those_of_the_rows() -> None:
    model, x, y = make("convolutional")
    room = er.Activations(model)
    train(model, x, y, room, 9)
    with room:
        loss = functional.cross_entropy(model(x), y)
    before = room.ledger
    assert before.rows is room.ledger.rows
    assert sum(row.decode_s for row in before.rows) == 0
    loss.backward()
    after = room.ledger
    for ledger in (before, after):
        assert ledger.saved_bytes == sum(row.saved_bytes for row in ledger.rows)
        assert ledger.kept_bytes == sum(row.kept_bytes for row in ledger.rows)
        assert ledger.gradient_error == pytest.approx(sum(r.gradient_error for r in ledger.rows))
    assert after.gradient_error > 0
    assert 0 < sum(row.decode_s for row in after.rows) <= after.decode_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"tolerance": -0.1}, "tolerance"),
        ({"tolerance": float("nan")}, "tolerance"),
        ({"tolerance": "0.1"}, "tolerance"),
        ({"refresh": 0}, "refresh"),
        ({"meter": -1}, "meter"),
        ({"seed": 1.5}, "seed"),
    ],
)
def test_wrong_arguments_get_a_sentence(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(er.InvalidArgument, match=word):
        er.Activations(nn.Linear(2, 2), **arguments)
    model: Any = "model"
    with pytest.raises(er.InvalidArgument, match=r"torch\.nn\.Module"):
        er.Activations(model)


def test_installed_on_a_model_that_nobody_wraps() -> None:
    model, x, y = make("upward")
    twin = copy.deepcopy(model)
    _, plain = run(twin, x, y)
    room = er.Activations(model, tolerance=0)
    room.install()
    room.install()
    _, ours = run(model, x, y)
    assert all(torch.equal(plain[n], ours[n]) for n in plain)
    assert room.ledger.step == 1
    assert room.ledger.ratio > 1
    room.remove()
    run(model, x, y)
    assert room.ledger.step == 1


def test_installed_model_that_fails() -> None:
    model, x, _ = make("upward")
    room = er.Activations(model, tolerance=0)
    room.install()
    with pytest.raises(RuntimeError):
        model(x[:, :2])
    assert not torch.overrides._get_current_function_mode_stack()
    model(x).sum().backward()


def test_the_meter_measures_an_installed_room_too() -> None:
    """Its exact run is exact although the model compresses by itself, and counts as no step."""
    model, x, y = make("convolutional")
    x, y = (torch.cat([v, v]) for v in (x, y))
    room = er.Activations(model)
    room.install()
    for _ in range(8):
        model.zero_grad()
        functional.cross_entropy(model(x), y).backward()
    assert room.ledger.step == 8
    assert room.ledger.readings
    assert all(reading.measured > 0 for reading in room.ledger.readings)


def test_trials_of_the_meter_leave_the_noise_alone() -> None:
    """The gradient of a part of a batch says nothing about that of the whole."""
    variances = []
    for meter in (0, 400):
        model, x, y = make("convolutional")
        room = er.Activations(model, meter=meter, tolerance=1e-9)
        for step in range(7):
            order = torch.randperm(16, generator=torch.Generator().manual_seed(step))[:8]
            run(model, x[order], y[order], room)
        variances.append(sum(room._noise.variance(p) or 0.0 for p in model.parameters()))
    assert variances[0] == pytest.approx(variances[1], rel=0.02)


def test_a_model_that_cannot_be_cut_costs_the_meter_only() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).tanh().view(256, 64)

    model = Fixed()
    room = er.Activations(model)
    for step in range(14):
        x = torch.randn(256, 64, generator=torch.Generator().manual_seed(step))
        model.zero_grad()
        with room:
            loss = model(x).square().mean()
        loss.backward()
    assert model.layer.weight.grad is not None
    assert sum("cannot be cut" in event for event in room.ledger.events) == 1
    assert not room.ledger.readings


@pytest.mark.parametrize("options", [{"tolerance": 0.0}, {}, {"memory": "64 GB"}])
@pytest.mark.parametrize("is_installed", [False, True])
def test_parameters_that_get_their_shape_in_the_first_pass(
    options: dict[str, Any], is_installed: bool
) -> None:
    """They are followed from the next pass on; the first one is right already."""

    def make_lazy() -> Any:
        return nn.Sequential(
            nn.LazyConv2d(16, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
        )

    x, y = images(size=16)
    _, plain = run(make_lazy(), x, y)
    model = make_lazy()
    room = er.Activations(model, **options)
    if is_installed:
        room.install()
    _, ours = run(model, x, y, None if is_installed else room)
    matches(list(plain.values()), list(ours.values()), room.tolerance)
    run(model, x, y, None if is_installed else room)
    assert room.ledger.step == 2
    # Under a budget all is kept, and masks lie beside it.
    assert room.ledger.ratio >= 0.98
    assert len(room._gradients) == (0 if room.tolerance == 0 else len(plain))
