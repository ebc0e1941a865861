"""Within bounds too a ReLU behind a normalisation leaves one bit a value and no more."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.keep.activations import memory
from elbowroom.keep.activations.ledger import Row
from tests.keep.activations.checking import error_of, gradients, nothing_is_left
from tests.keep.activations.test_derive import forward, make_network


def learnt(model: Any, steps: int = 6, **options: Any) -> er.Activations:
    """A room that has seen gradients enough for its bounds to follow from them."""
    room = er.Activations(model, meter=0, **options)
    for seed in range(steps):
        gradients(model, forward, room, seed=seed)
    return room


def rows(room: er.Activations, reader: str) -> list[Row]:
    return [row for row in room.ledger.rows if reader in row.readers]


@pytest.mark.parametrize(
    "activation", [nn.ReLU, lambda: nn.ReLU(inplace=True)], ids=["relu", "relu in place"]
)
def test_one_encoded_tensor_and_a_bit_a_value(activation: Callable[[], nn.Module]) -> None:
    model = make_network(activation)
    room = learnt(model)
    plain = gradients(model, forward)
    assert error_of(plain, gradients(model, forward, room)) < 0.05
    derived = [row for row in rows(room, "Relu.result") if row.method == "derive"]
    assert [row.kept_bytes for row in derived] == [row.saved_bytes // 32 for row in derived]
    assert len(derived) == 2
    # Of both normalisations' inputs the ledger tells that convolutions read them too.
    assert len(rows(room, "NativeBatchNorm.input")) == 2
    assert all("Convolution.input" in row.readers for row in rows(room, "NativeBatchNorm.input"))
    nothing_is_left(room)


def test_the_mask_is_exact() -> None:
    """The gradient behind a ReLU is zero just where it is plainly."""
    seen: list[Tensor] = []

    def watched(model: Any) -> tuple[Tensor, ...]:
        y = model[1](model[0](torch.randn(8, 3, 24, 24)))
        y.register_hook(lambda g: seen.append(g == 0))
        return (model[3](model[2](y)).square().mean(),)

    model = make_network(nn.ReLU)
    room = er.Activations(model, meter=0)
    for seed in range(6):
        gradients(model, watched, room, seed=seed)
    seen.clear()
    gradients(model, watched)
    gradients(model, watched, room)
    assert {row.method for row in rows(room, "Relu.result")} == {"derive"}
    assert 0.2 < float(seen[0].float().mean()) < 0.8
    assert torch.equal(*seen)


def test_errors_have_no_bias() -> None:
    """Over many draws of the dither, what is derived comes out at the plain gradient."""
    model = make_network(nn.ReLU)
    room = learnt(model)
    plain = gradients(model, forward)
    total = [torch.zeros_like(g) for g in plain if g is not None]
    single, draws = 0.0, 24
    with room._trial():
        for seed in range(draws):
            room._policy.seed = 1000 + seed
            torch.manual_seed(1)
            with room._retry(1.0):
                (loss,) = forward(model)
            found = torch.autograd.grad(loss, list(model.parameters()))
            single += error_of(plain, list(found)) / draws
            for sum_, g in zip(total, found, strict=True):
                sum_.add_(g / draws)
    assert error_of(plain, list(total)) < 4 * single / draws


def test_a_second_backward_finds_the_same() -> None:
    model = make_network(nn.ReLU)
    room = learnt(model)
    torch.manual_seed(1)
    with room:
        (loss,) = forward(model)
    parameters = list(model.parameters())
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    second = torch.autograd.grad(loss, parameters)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    nothing_is_left(room)


def test_a_layer_norm_before_the_relu() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.LayerNorm(256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 8)
    )

    def step(model: Any) -> tuple[Tensor, ...]:
        return (model(torch.randn(256, 64)).square().mean(),)

    room = er.Activations(model, meter=0)
    for seed in range(6):
        gradients(model, step, room, seed=seed)
    plain = gradients(model, step)
    assert error_of(plain, gradients(model, step, room)) < 0.05
    (derived,) = (row for row in room.ledger.rows if row.method == "derive")
    assert derived.readers == ("Addmm.mat1",)
    assert derived.kept_bytes == derived.saved_bytes // 32


def test_values_that_were_changed_behind_autograds_back_are_encoded() -> None:
    def altered(model: Any) -> tuple[Tensor, ...]:
        y = model[2](model[1](model[0](torch.randn(8, 3, 24, 24))))
        y.data.mul_(2).add_(1)
        return (model[3](y).square().mean(),)

    model = make_network(nn.ReLU)
    room = er.Activations(model, meter=0)
    for seed in range(6):
        gradients(model, altered, room, seed=seed)
    plain = gradients(model, altered)
    assert error_of(plain, gradients(model, altered, room)) < 0.05
    assert {row.method for row in rows(room, "Relu.result")} == {"encode"}


@pytest.mark.parametrize("rule", ["comet", "certified"])
def test_rules_for_inputs_of_layers_encode_those(rule: Any) -> None:
    room = learnt(make_network(nn.ReLU), rule=rule)
    assert "derive" not in {row.method for row in rows(room, "Relu.result")}


def test_where_memory_is_short_both_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What derives lies beside its source while its layer is at work."""
    monkeypatch.setattr(memory, "ALWAYS_BYTES", 1)
    room = learnt(make_network(nn.ReLU))
    assert {row.method for row in rows(room, "Relu.result")} == {"encode"}


def test_half_precision_and_a_frozen_network() -> None:
    def cast(model: Any) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            return (model(torch.randn(8, 3, 24, 24)).float().square().mean(),)

    model = make_network(nn.ReLU)
    room = er.Activations(model, meter=0)
    for seed in range(6):
        gradients(model, cast, room, seed=seed)
    plain = gradients(model, cast)
    assert error_of(plain, gradients(model, cast, room)) < 0.05
    assert {row.method for row in rows(room, "Relu.result")} == {"derive"}
    frozen = learnt(make_network(nn.ReLU).eval())
    assert "derive" not in {row.method for row in rows(frozen, "Relu.result")}


def test_statistics_and_weights_are_those_of_a_plain_step() -> None:
    found: list[list[Tensor]] = []
    for is_plain in (True, False):
        model = make_network(nn.ReLU)
        room = nullcontext() if is_plain else er.Activations(model, meter=0)
        torch.manual_seed(1)
        with room:
            (loss,) = forward(model)
        loss.backward()
        found.append([t.detach().clone() for t in model.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


class Shared(nn.Module):
    """Two normalisations read one tensor, with very different gains."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv2d(3, 16, 3, padding=1)
        self.small, self.large = nn.BatchNorm2d(16), nn.BatchNorm2d(16)
        self.arms = nn.ModuleList(nn.Conv2d(16, 8, 3, padding=1) for _ in range(2))
        nn.init.constant_(self.small.weight, 0.01)
        nn.init.constant_(self.large.weight, 10.0)
        # What is left to train bears an error of the one, and hardly any of the other.
        self.start.requires_grad_(False)
        self.arms[0].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        norms = zip((self.small, self.large), self.arms, strict=True)
        return torch.cat([arm(norm(h).relu()) for norm, arm in norms], 1)


def test_errors_grow_by_the_normalisation_that_they_pass() -> None:
    torch.manual_seed(0)
    model = Shared()
    room = er.Activations(model, meter=0)

    def noisy(model: Any) -> tuple[Tensor, ...]:
        y = model(torch.randn(8, 3, 24, 24))
        return ((y * torch.randn_like(y)).mean(),)

    for seed in range(8):
        gradients(model, noisy, room, seed=seed)
    assert [row.method for row in rows(room, "Relu.result")] == ["derive", "derive"]
    plain = gradients(model, noisy, seed=7)
    # A tenth of the gradient's variance, which here is all of the gradient.
    assert error_of(plain, gradients(model, noisy, room, seed=7)) < 0.12


def test_who_compares_gets_what_was_compared() -> None:
    """Derived from an exact tensor too, last bits differ: none would be the largest."""
    torch.manual_seed(0)
    model = nn.ModuleList(
        [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 4, 3), nn.LayerNorm(20)]
    )

    def compared(model: Any) -> tuple[Tensor, ...]:
        h = model[0](torch.randn(8, 3, 24, 24))
        r = model[1](h).relu()
        total = model[2](r).square().mean() + r.amax((2, 3)).square().mean()
        return (total + torch.maximum(h, h / 2).mean(),)

    room = er.Activations(model, meter=0)
    for seed in range(6):
        plain = gradients(model, compared, seed=seed)
        assert error_of(plain, gradients(model, compared, room, seed=seed)) < 0.05


def test_what_was_encoded_first_is_derived_from_all_the_same() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 256), *(nn.Linear(256, 8) for _ in range(4)), nn.LayerNorm(256)]
    model = nn.ModuleList(layers)

    def step(model: Any) -> tuple[Tensor, ...]:
        start, first, *arms, norm = model
        h = start(torch.randn(256, 64))
        y = first(h)
        functions = (nn.functional.gelu, lambda x: norm(x).relu(), nn.functional.silu)
        for arm, function in zip(arms, functions, strict=True):
            y = y + arm(function(h))
        return (y.square().mean(),)

    room = er.Activations(model, meter=0)
    for seed in range(6):
        gradients(model, step, room, seed=seed)
    plain = gradients(model, step)
    assert error_of(plain, gradients(model, step, room)) < 0.05
    assert sum(row.method == "derive" for row in room.ledger.rows) == 3


@pytest.mark.parametrize("tolerance", [0, 0.1])
@pytest.mark.parametrize(
    "change",
    [lambda y: y.data.mul_(2), lambda y: y.data[1:].mul_(2), lambda y: y.data[:, 3:].add_(1)],
    ids=["all", "other samples", "other channels"],
)
@pytest.mark.parametrize("ending", [nn.Identity, lambda: nn.Dropout(0.3)], ids=["", "dropout"])
def test_changes_in_a_part_and_behind_dropout_are_noticed(
    tolerance: float, change: Callable[[Tensor], Any], ending: Callable[[], nn.Module]
) -> None:
    last = ending()

    def altered(model: Any) -> tuple[Tensor, ...]:
        y = model[2](model[1](model[0](torch.randn(8, 3, 24, 24))))
        change(y)
        return (model[3](last(y)).square().mean(),)

    model = make_network(nn.ReLU)
    room = er.Activations(model, meter=0, tolerance=tolerance)
    for seed in range(6):
        gradients(model, altered, room, seed=seed)
    plain = gradients(model, altered)
    assert error_of(plain, gradients(model, altered, room)) < 0.05 * (tolerance > 0) + 1e-12


def test_the_meter_runs_as_the_pass_did() -> None:
    """Backward, and the trial at its end, are outside of autocast."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(64, 256), nn.LayerNorm(256), nn.ReLU()),
        *(nn.Linear(256, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 8)),
    )
    room = er.Activations(model, meter=1)

    def cast(model: Any) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            y = model(torch.randn(256, 64))
        return ((y.float() * torch.randn(256, 8)).mean(),)

    for seed in range(8):
        gradients(model, cast, room, seed=seed)
    readings = room.ledger.readings[1:]
    assert len(readings) > 3
    assert max(reading.measured for reading in readings) < 0.2
