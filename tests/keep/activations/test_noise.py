"""The gradient's variance: from gradients seen, from an optimizer's moments, and in truth."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations.moments import Moments
from elbowroom.keep.activations.noise import Noise
from tests.keep.activations.models import make, train

BATCH = 32


def draw() -> tuple[Tensor, Tensor]:
    x = torch.randn(BATCH, 64)
    return x, (2 * x[:, :8] + x[:, 8:16]).argmax(1)


def gradients(model: nn.Module) -> tuple[Tensor, ...]:
    x, y = draw()
    return torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters()))


class Toy:
    """A small training that both estimates watch."""

    def __init__(self, kind: Any = torch.optim.AdamW, scale: float = 1.0) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
        self.optimizer = kind(self.model.parameters(), 3e-3)
        self.running, self.informed = Noise(), Noise(Moments(self.optimizer))
        self.scale = scale
        """Of the gradients that are watched, as a GradScaler's."""

        self.step = 0
        self.weight = 1.0
        """Of the loss."""

    def train(self, steps: int) -> None:
        parameters = list(self.model.parameters())
        for _ in range(steps):
            self.step += 1
            for parameter, gradient in zip(parameters, gradients(self.model), strict=True):
                parameter.grad = self.weight * gradient
                for noise in (self.running, self.informed):
                    noise.observe(parameter, self.scale * parameter.grad, self.step)
            self.optimizer.step()

    def variances(self, noise: Noise) -> list[float]:
        found = [noise.variance(parameter) for parameter in self.model.parameters()]
        return [variance for variance in found if variance is not None]

    def truth(self) -> float:
        """Of a hundred batches at the present weights."""
        drawn = [gradients(self.model) for _ in range(100)]
        return sum(float(torch.stack(one).var(0).sum()) for one in zip(*drawn, strict=True))


@pytest.mark.parametrize("steps", [6, 40, 250])
def test_both_estimates_are_near_the_truth(steps: int) -> None:
    """The loss falls by far in 250 steps, and Adam's second moment remembers a thousand."""
    toy = Toy()
    toy.train(steps)
    running, informed = sum(toy.variances(toy.running)), sum(toy.variances(toy.informed))
    assert toy.truth() / 1.6 < informed < toy.truth() * 1.6
    assert running / 2 < informed < running * 2


def test_the_present_size_counts() -> None:
    """Gradients fall to a tenth, and Adam's second moment goes on remembering what they were."""
    toy = Toy()
    toy.train(100)
    before = toy.truth()
    toy.weight = 0.1
    toy.train(60)
    after = 0.01 * toy.truth()
    assert after < before / 20
    assert sum(toy.variances(Noise(Moments(toy.optimizer)))) > 10 * after
    assert after / 2 < sum(toy.variances(toy.informed)) < after * 2


def test_loss_scaling_changes_gradients_and_not_moments() -> None:
    plain = Toy()
    plain.train(20)
    scaled = Toy(scale=1024.0)
    scaled.train(20)
    expected = [1024**2 * variance for variance in plain.variances(plain.informed)]
    assert scaled.variances(scaled.informed) == pytest.approx(expected, rel=1e-3)
    for p, q in zip(plain.model.parameters(), scaled.model.parameters(), strict=True):
        assert scaled.informed.momentum(q) == pytest.approx(1024 * plain.informed.momentum(p))
        assert scaled.informed.size(q) == pytest.approx(1024 * plain.informed.size(p))


def test_a_resumed_run_knows_its_variance_at_once() -> None:
    toy = Toy()
    toy.train(40)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    optimizer.load_state_dict(toy.optimizer.state_dict())
    noise = Noise(Moments(optimizer))
    assert all(noise.variance(parameter) for parameter in model.parameters())


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
def test_optimizers_without_both_moments_leave_the_running_estimate(kind: Any) -> None:
    toy = Toy(kind)
    toy.train(12)
    assert toy.variances(toy.informed)
    assert toy.variances(toy.informed) == toy.variances(toy.running)


def test_too_few_gradients_tell_nothing() -> None:
    toy = Toy()
    toy.train(2)
    assert toy.variances(toy.informed) == []


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.NAdam, torch.optim.RAdam])
def test_kin_of_adam_tell_the_same(kind: Any) -> None:
    toy = Toy(kind)
    toy.train(30)
    assert sum(toy.variances(toy.informed)) == pytest.approx(
        sum(toy.variances(toy.running)), rel=0.5
    )


def test_a_room_takes_an_optimizer() -> None:
    model, x, y = make("convolutional")
    x, y = torch.cat([x, x.flip(3)]), torch.cat([y, y])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    room = er.Activations(model, optimizer=optimizer, refresh=4, meter=4)
    before = optimizer.state_dict()["param_groups"]
    for index in range(24):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(index))[:16]
        with room:
            loss = functional.cross_entropy(model(x[order]), y[order])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.state_dict()["param_groups"] == before
    assert 0 < room.ledger.gradient_error <= 0.1 + 1e-9
    assert room.ledger.ratio > 5
    assert room.ledger.readings
    assert train(model, x, y, room, 2)


def test_what_is_no_optimizer_is_refused() -> None:
    model, _, _ = make("upward")
    bad: Any = "adam"
    with pytest.raises(er.InvalidArgument, match=r"optimizer must be a torch\.optim\.Optimizer"):
        er.Activations(model, optimizer=bad)


def test_an_optimizer_of_another_model_is_told(caplog: pytest.LogCaptureFixture) -> None:
    model, _, _ = make("upward")
    er.Activations(model, optimizer=torch.optim.Adam(model.parameters()))
    assert not caplog.messages
    er.Activations(model, optimizer=torch.optim.Adam(nn.Linear(2, 2).parameters()))
    assert "has none of the model's parameters" in caplog.text


def _drifting(noise: Noise, steps: range, *, spread: float = 0.1) -> nn.Parameter:
    """Follow gradients of length 32 whose mean turns by a twentieth of a circle a step."""
    parameter = nn.Parameter(torch.zeros(2, 512))
    generator = torch.Generator().manual_seed(1)
    for step in steps:
        angle = torch.tensor(step * torch.pi / 40)
        mean = torch.stack([angle.cos().expand(512), angle.sin().expand(512)])
        around = spread * torch.randn(2, 512, generator=generator)
        noise.observe(parameter, mean + around, step)
    return parameter


@pytest.mark.parametrize("steps", [range(1, 25), range(1, 200)], ids=["early", "late"])
def test_a_gradient_that_moves_is_not_noise(steps: range) -> None:
    noise = Noise()
    parameter = _drifting(noise, steps)
    # Of 1024 elements with a variance of 0.01 each; the mean alone moves by some hundreds.
    assert noise.variance(parameter) == pytest.approx(10.24, rel=0.5)


def test_calm_is_noticed_once_the_variance_has_halved() -> None:
    noise = Noise()
    parameter = _drifting(noise, range(1, 25))
    noise.mark()
    assert not noise.has_calmed(28)
    generator = torch.Generator().manual_seed(2)
    for step in range(25, 33):
        noise.observe(parameter, 0.01 * torch.randn(2, 512, generator=generator), step)
    assert noise.has_calmed(32)
    assert not noise.has_calmed(33)


def test_a_first_gradient_that_another_thread_is_still_counting_tells_nothing() -> None:
    noise, parameter = Noise(), nn.Parameter(torch.ones(8))
    noise.observe(parameter, torch.ones(8), 1)
    track = noise._tracks[id(parameter)]
    track.weight = track.weight_squared = 0.0  # as between two lines of observe
    assert noise.variance(parameter) is None
    assert noise.momentum(parameter) == 0.0


def test_after_a_gradient_that_is_far_too_small_usual_ones_are_expected() -> None:
    noise, parameter = Noise(), nn.Parameter(torch.zeros(64))
    generator = torch.Generator().manual_seed(1)
    for step in range(1, 9):
        noise.observe(parameter, torch.randn(64, generator=generator), step)
    assert 0.5 < noise.lull([parameter]) < 2
    noise.observe(parameter, 0.01 * torch.randn(64, generator=generator), 9)
    # Sixty percent of the average are left, beside a ten-thousandth.
    assert 3000 < noise.lull([parameter]) < 12000


def test_both_parts_of_a_complex_gradient_count() -> None:
    generator = torch.Generator().manual_seed(1)
    whole, halves = Noise(), Noise()
    parameter = nn.Parameter(torch.zeros(512, dtype=torch.complex64))
    real = nn.Parameter(torch.zeros(512, 2))
    for step in range(1, 9):
        gradient = torch.randn(512, 2, generator=generator)
        whole.observe(parameter, torch.view_as_complex(gradient), step)
        halves.observe(real, gradient, step)
    assert whole.variance(parameter) == pytest.approx(halves.variance(real))
    assert whole.variance(parameter) == pytest.approx(1024, rel=0.2)


def test_the_variance_of_few_gradients_has_no_bias() -> None:
    """Of three gradients of 1024 independent elements the estimate is right on average."""
    found: list[float] = []
    for seed in range(20):
        noise, parameter = Noise(), nn.Parameter(torch.zeros(1024))
        generator = torch.Generator().manual_seed(seed)
        for step in (1, 3, 5):  # no two in a row: differences say nothing
            noise.observe(parameter, torch.randn(1024, generator=generator), step)
        variance = noise.variance(parameter)
        assert variance is not None
        found.append(variance)
    assert sum(found) / len(found) == pytest.approx(1024, rel=0.02)


def test_differences_count_only_where_they_are_clearly_smaller() -> None:
    """The smaller of two estimates that mean the same would be too small on average."""
    found: list[float] = []
    for seed in range(40):
        noise, parameter = Noise(), nn.Parameter(torch.zeros(16))
        generator = torch.Generator().manual_seed(seed)
        for step in range(1, 13):
            noise.observe(parameter, torch.randn(16, generator=generator), step)
        variance = noise.variance(parameter)
        assert variance is not None
        found.append(variance)
    assert sum(found) / len(found) == pytest.approx(16, rel=0.05)


def test_a_mean_that_goes_straight_on_is_hardly_noise() -> None:
    noise, parameter = Noise(), nn.Parameter(torch.zeros(512))
    generator = torch.Generator().manual_seed(1)
    line = torch.linspace(-1, 1, 512)
    for step in range(1, 13):
        mean = line * (1 + 0.5 * step)
        noise.observe(parameter, mean + 0.05 * torch.randn(512, generator=generator), step)
    found = noise.variance(parameter)
    assert found is not None
    # One step of the mean is worth far more than the noise, of 1.28 in all.
    one_step = float((0.5 * line).square().sum()) / 2
    assert 0.7 * 1.28 < found < one_step / 4
