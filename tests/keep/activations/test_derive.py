"""What follows from what is kept: the same bits, and fewer bytes."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from tests.keep.activations.checking import error_of, gradients, nothing_is_left, same_bits


def make_network(activation: Callable[[], nn.Module], **options: Any) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16, **options),
        activation(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.BatchNorm2d(16, **options),
        activation(),
        nn.Conv2d(16, 8, 3),
    )


def forward(model: Any) -> tuple[Tensor, ...]:
    return (model(torch.randn(8, 3, 24, 24)).square().mean(),)


def methods(room: er.Activations, reader: str) -> set[str]:
    return {row.method for row in room.ledger.rows if reader in row.readers and row.kept_bytes == 0}


@pytest.mark.parametrize(
    ("activation", "ratio"),
    [
        (nn.ReLU, 1.75),
        (lambda: nn.ReLU(inplace=True), 1.75),
        (nn.SiLU, 2.5),
        (nn.GELU, 2.5),
    ],
    ids=["relu", "relu in place", "silu", "gelu"],
)
def test_one_tensor_serves_convolution_normalisation_and_activation(
    activation: Callable[[], nn.Module], ratio: float
) -> None:
    model = make_network(activation)
    plain = gradients(model, forward)
    room = er.Activations(model, tolerance=0)
    ours = gradients(model, forward, room)
    assert same_bits(plain, ours)
    assert room.ledger.ratio > ratio
    assert methods(room, "Convolution.input") == {"derive"}
    nothing_is_left(room)


def test_statistics_are_those_of_one_forward() -> None:
    found: list[list[Tensor | None]] = []
    for is_plain in (True, False):
        model = make_network(nn.ReLU)
        torch.manual_seed(1)
        with nullcontext() if is_plain else er.Activations(model, tolerance=0):
            (loss,) = forward(model)
        loss.backward()
        found.append([b.clone() for b in model.buffers()])
    assert same_bits(*found)


def test_what_is_read_by_several_layers_is_made_once() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(16)
            self.arms = nn.ModuleList(nn.Conv2d(16, 16, 3) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x).relu()
            return sum((arm(y) for arm in self.arms), torch.zeros(()))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), Branches())
    plain = gradients(model, forward)
    room = er.Activations(model, tolerance=0)
    assert same_bits(plain, gradients(model, forward, room))
    nothing_is_left(room)


def test_a_bias_that_is_not_trained_is_not_guessed() -> None:
    model = make_network(nn.ReLU)
    for module in model:
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.bias).requires_grad_(False)
    plain = gradients(model, forward)
    room = er.Activations(model, tolerance=0)
    assert same_bits(plain, gradients(model, forward, room))
    assert not methods(room, "Convolution.input")


def test_a_bias_that_changes_before_backward_is_the_one_of_forward() -> None:
    results: list[list[Tensor | None]] = []
    for is_plain in (True, False):
        model: Any = make_network(nn.ReLU)
        room = er.Activations(model, tolerance=0)
        torch.manual_seed(1)
        if is_plain:
            (loss,) = forward(model)
        else:
            with room:
                (loss,) = forward(model)
        with torch.no_grad():
            model[1].bias.add_(1.0)
        loss.backward()
        results.append([p.grad.clone() for p in model.parameters()])
    assert same_bits(*results)


@pytest.mark.parametrize("options", [{"affine": False}, {"track_running_stats": False}])
def test_other_normalisations(options: dict[str, bool]) -> None:
    model = make_network(nn.ReLU, **options)
    plain = gradients(model, forward)
    room = er.Activations(model, tolerance=0)
    assert same_bits(plain, gradients(model, forward, room))


def test_evaluation_channels_last_and_autocast() -> None:
    def last(model: Any) -> tuple[Tensor, ...]:
        x = torch.randn(8, 3, 24, 24).to(memory_format=torch.channels_last)
        return (model(x).square().mean(),)

    def cast(model: Any) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            return (model(torch.randn(8, 3, 24, 24)).float().square().mean(),)

    frozen = make_network(nn.ReLU).eval()
    for model, step in (
        (make_network(nn.ReLU).to(memory_format=torch.channels_last), last),
        (make_network(nn.ReLU), cast),
        (frozen, forward),
    ):
        plain = gradients(model, step)
        room = er.Activations(model, tolerance=0)
        assert same_bits(plain, gradients(model, step, room))
        nothing_is_left(room)


CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "clamped": lambda y: y.clamp_(-1, 1),
    "detached": lambda y: y.detach().mul_(2),
    "data": lambda y: y.data.mul_(2),
}


@pytest.mark.parametrize(
    ("change", "make"),
    [
        *[(change, make) for change in CHANGES for make in (nn.Identity, nn.GELU, nn.SiLU)],
        # Of the others plain torch says that they were changed.
        ("data", nn.ReLU),
    ],
)
def test_values_that_were_changed_behind_autograds_back_are_kept(
    change: str, make: Callable[[], nn.Module]
) -> None:
    def altered(model: Any) -> tuple[Tensor, ...]:
        y = make()(model[1](model[0](torch.randn(8, 3, 24, 24))))
        with torch.no_grad():
            CHANGES[change](y)
        return (model[3](y).square().mean(),)

    model = make_network(nn.ReLU)
    plain = gradients(model, altered)
    assert same_bits(plain, gradients(model, altered, er.Activations(model, tolerance=0)))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("tolerance", [0, 0.1])
@pytest.mark.parametrize(
    "make", [lambda: nn.LayerNorm(256), lambda: nn.LayerNorm([4, 256]), nn.GELU, nn.SiLU]
)
def test_rows_that_were_changed_behind_autograds_back(
    change: str, tolerance: float, make: Callable[[], nn.Module]
) -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(64, 256), make(), nn.Linear(256, 8))

    def altered(model: Any) -> tuple[Tensor, ...]:
        y = model[1](model[0](torch.randn(64, 4, 64)))
        with torch.no_grad():
            CHANGES[change](y)
        return (model[2](y).square().mean(),)

    plain = gradients(model, altered)
    room = er.Activations(model, tolerance=tolerance, meter=0)
    found = gradients(model, altered, room)
    assert same_bits(plain, found) if tolerance == 0 else error_of(plain, found) < 0.01
    assert not methods(room, "Addmm.mat1")


def test_an_empty_batch_after_others() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 8))
    room = er.Activations(model, meter=0)
    for count in (64, 64, 64, 64, 0, 64):

        def some(model: Any, count: int = count) -> tuple[Tensor, ...]:
            return (model(torch.randn(count, 64)).square().sum(),)

        plain = gradients(model, some)
        assert error_of(plain, gradients(model, some, room)) < 0.05


def test_weights_that_change_between_forward_and_a_part_of_backward() -> None:
    results: list[list[Tensor | None]] = []
    for is_plain in (True, False):
        model = make_network(nn.ReLU)
        torch.manual_seed(1)
        with nullcontext() if is_plain else er.Activations(model, tolerance=0):
            (loss,) = forward(model)
        with torch.no_grad():
            model[4].weight.mul_(2)
        results.append(list(torch.autograd.grad(loss, [model[6].weight])))
    assert same_bits(*results)


class Square(torch.autograd.Function):
    """Saves its input, and its node names none of what it saves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return 2 * ctx.saved_tensors[0] * gradients[0]


@pytest.mark.parametrize("first", [nn.ReLU(), nn.ReLU6(), nn.MaxPool2d(2)], ids=str)
def test_custom_functions_get_the_values_that_others_need_a_bit_of(first: nn.Module) -> None:
    model = make_network(nn.ReLU)

    def custom(model: Any) -> tuple[Tensor, ...]:
        x = model[0](torch.randn(8, 3, 24, 24))
        y = first(x)
        return (model[3](Square.apply(y)).square().mean() + Square.apply(x).mean(),)

    plain = gradients(model, custom)
    assert same_bits(plain, gradients(model, custom, er.Activations(model, tolerance=0)))
    room = er.Activations(model)
    assert error_of(plain, gradients(model, custom, room)) < 0.05


READERS: dict[str, Callable[[Tensor], Tensor]] = {
    "quotient": lambda y: torch.ones_like(y) / y,
    "logarithm": lambda y: y.log(),
    "size": torch.abs,
    "leaky": nn.functional.leaky_relu,
    "quotient of a view": lambda y: torch.ones(y.numel()) / y.view(-1),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("made", [nn.GELU(), nn.SiLU(), nn.LayerNorm(128), nn.Identity()], ids=str)
def test_a_second_reader_has_no_error_where_it_could_not_bear_one(
    made: nn.Module, name: str
) -> None:
    """The first one lets the tensor follow from others within bounds."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(128, 128), made, nn.Linear(128, 128))
    x = torch.randn(256, 128)

    def gradient(room: Any) -> Tensor:
        with room:
            y = model[1](model[0](x))
            y.retain_grad()
            loss = 0 * model[2](y).sum() + (READERS[name](y).nan_to_num(0)).sum()
        loss.backward()
        return y.grad

    plain = gradient(nullcontext())
    room = er.Activations(model, tolerance=0.5)
    for _ in range(3):
        assert torch.equal(plain, gradient(room))


@pytest.mark.parametrize("is_first", [False, True])
def test_mask_of_a_relu_of_which_others_hold_a_view_within_bounds(is_first: bool) -> None:
    torch.manual_seed(0)
    model: Any = nn.Linear(128, 128)
    x = torch.randn(256, 128)
    weight = nn.Parameter(torch.randn(256, 128))

    def gradient(room: Any) -> Tensor:
        with room:
            y = model(x)
            y.retain_grad()
            z = y.relu()
            forms = [(-1,), (256, 128)]
            parts = [z.view(f) * weight.view(f) for f in (forms if is_first else forms[::-1])]
            loss = parts[0].sum() + parts[1].sum()
        loss.backward()
        return y.grad

    plain = gradient(nullcontext())
    room = er.Activations(model, tolerance=0.5)
    for _ in range(3):
        assert torch.equal(plain, gradient(room))
