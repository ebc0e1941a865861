"""What follows from kept tensors by several operations: the same bits, and far fewer bytes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations.coordinates import broadcast
from tests.keep.activations.checking import error_of, gradients, nothing_is_left, same_bits


class Applied(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[..., Tensor], *parameters: int) -> None:
        super().__init__()
        self.function = function
        self.own = nn.ParameterList(nn.Parameter(torch.rand(size) + 0.5) for size in parameters)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.own)


class Twice(nn.Module):
    """Two branches that are multiplied."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate, self.up, self.function = nn.Linear(64, 64), nn.Linear(64, 64), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.gate(x)) * self.up(x)


def by_hand(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm in float32."""
    wide = x.to(torch.float32)
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def unit(x: Tensor, gain: Tensor) -> Tensor:
    """Rows of one length."""
    return functional.normalize(x, dim=-1) * 8 * gain


def bent_gelu(x: Tensor) -> Tensor:
    """As older language models write it."""
    return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.045 * torch.pow(x, 3.0))))


def gate(x: Tensor) -> Tensor:
    """Channels times what their mean makes of them."""
    return x * x.mean((2, 3), keepdim=True).sigmoid()


def rows(*layers: nn.Module) -> Any:
    return nn.Sequential(nn.Linear(64, 64), *layers, nn.Linear(64, 8)), lambda: torch.randn(
        16, 16, 64
    )


def pictures(*layers: nn.Module) -> Any:
    model = nn.Sequential(nn.Conv2d(3, 16, 1), *layers, nn.Conv2d(16, 4, 3))
    return model, lambda: torch.randn(4, 3, 16, 16)


def last(*layers: nn.Module) -> Any:
    model, make = pictures(*layers)
    layout = torch.channels_last
    return model.to(memory_format=layout), lambda: make().to(memory_format=layout)


class MiddleNorm(nn.LayerNorm):
    """Over channels."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


CASES: dict[str, tuple[Callable[[], Any], int]] = {
    "rms norm": (lambda: rows(nn.RMSNorm(64)), 1),
    "rms norm by hand": (lambda: rows(Applied(by_hand, 64)), 1),
    "normalize": (lambda: rows(Applied(unit, 64)), 1),
    "swiglu": (lambda: rows(Twice(functional.silu)), 3),
    "geglu": (lambda: rows(Twice(functional.gelu)), 3),
    "glu": (lambda: rows(Twice(torch.sigmoid)), 3),
    "layer scale": (lambda: rows(nn.GELU(), Applied(lambda x, g: x * g, 64)), 1),
    "gelu of tanh": (lambda: rows(Applied(bent_gelu)), 1),
    "batch norm, silu in place": (lambda: pictures(nn.BatchNorm2d(16), nn.SiLU(inplace=True)), 1),
    "hardswish in place": (lambda: pictures(nn.BatchNorm2d(16), nn.Hardswish(inplace=True)), 1),
    "gate": (lambda: pictures(nn.BatchNorm2d(16), nn.SiLU(), Applied(gate)), 1),
    "group norm, silu": (lambda: pictures(nn.GroupNorm(4, 16), nn.SiLU()), 1),
    "permuted layer norm": (lambda: pictures(MiddleNorm(16), nn.GELU()), 1),
    "batch norm, relu, channels last": (lambda: last(nn.BatchNorm2d(16), nn.ReLU()), 1),
    "batch norm, silu, channels last": (
        lambda: last(nn.BatchNorm2d(16), nn.SiLU(inplace=True), Applied(gate)),
        1,
    ),
    "group norm, silu, channels last": (lambda: last(nn.GroupNorm(4, 16), nn.SiLU()), 1),
    "layer norm, channels last": (lambda: last(MiddleNorm(16), nn.GELU()), 1),
}


def large(room: er.Activations) -> set[str]:
    """Of large tensors that are kept or encoded, the layers."""
    held = ("keep", "encode")
    big = [
        r
        for r in room.ledger.rows
        # Rows of norms are expanded, and count as if they were large.
        if r.saved_bytes >= 65536 and r.method in held and "Div.other" not in r.readers
    ]
    return {f"{r.name} {r.shape}" for r in big}


@pytest.mark.parametrize("name", CASES)
def test_one_tensor_is_kept_of_each_branch(name: str) -> None:
    torch.manual_seed(0)
    (model, make), count = CASES[name][0](), CASES[name][1]
    batches: list[Tensor] = []  # the caller's own, and none of the pass

    def forward(model: Any) -> tuple[Tensor, ...]:
        batches.append(make())
        return (model(batches[-1]).square().mean(),)

    plain = gradients(model, forward)
    room = er.Activations(model, tolerance=0)
    assert same_bits(plain, gradients(model, forward, room))
    assert len(large(room)) == count, room.ledger
    nothing_is_left(room)
    room.close()
    within = er.Activations(model, meter=0)
    assert error_of(plain, gradients(model, forward, within)) < 1e-3
    assert len(large(within)) == count, within.ledger
    nothing_is_left(within)


@pytest.mark.parametrize("tolerance", [0, 0.1])
def test_what_was_changed_behind_autograds_back_is_not_derived(tolerance: float) -> None:
    """Between two operations, in a tensor that nobody has saved, far from where anybody looks."""

    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.second = nn.Linear(64, 64), nn.RMSNorm(64), nn.Linear(64, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.first(x))
            with torch.no_grad():
                y[1, 3, 5] += 100
            return self.second(y * 2.0)

    torch.manual_seed(0)
    model = Changing()

    def forward(model: Any) -> tuple[Tensor, ...]:
        return (model(torch.randn(16, 16, 64)).square().mean(),)

    plain = gradients(model, forward)
    ours = gradients(model, forward, er.Activations(model, tolerance=tolerance, meter=0))
    assert same_bits(plain, ours) if tolerance == 0 else error_of(plain, ours) < 1e-3


def test_operations_in_place_that_autograd_sees_are_followed() -> None:
    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.last = (nn.Linear(64, 64) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            y = functional.silu(self.one(x))
            y += functional.silu(self.two(x))
            return self.last(y)

    torch.manual_seed(0)
    model = Adding()
    batches: list[Tensor] = []  # the caller's own, and none of the pass

    def forward(model: Any) -> tuple[Tensor, ...]:
        batches.append(torch.randn(16, 16, 64))
        return (model(batches[-1]).square().mean(),)

    plain = gradients(model, forward)
    room = er.Activations(model, tolerance=0)
    assert same_bits(plain, gradients(model, forward, room))
    # What both activations were made of, and the output.
    assert len(large(room)) == 3, room.ledger


def test_parameters_that_change_before_backward_are_told() -> None:
    torch.manual_seed(0)
    model = rows(nn.RMSNorm(64))[0]
    with er.Activations(model, tolerance=0):
        loss = model(torch.randn(16, 16, 64)).square().mean()
    with torch.no_grad():
        model[1].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Volume(nn.Module):
    """Of nnU-Net: an activation in place behind an instance normalisation."""

    def __init__(self, *, affine: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, bias=False), nn.Conv2d(16, 4, 3)
        self.norm, self.act = nn.InstanceNorm2d(16, affine=affine), nn.LeakyReLU(0.01, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.norm(self.first(x))))


@pytest.mark.parametrize("affine", [False, True])
def test_activations_in_place_behind_an_instance_normalisation(affine: bool) -> None:
    torch.manual_seed(0)
    model = Volume(affine=affine)

    def forward(model: Any) -> tuple[Tensor, ...]:
        return (model(torch.randn(4, 3, 18, 18)).square().mean(),)

    plain = gradients(model, forward)
    room = er.Activations(model, tolerance=0)
    assert same_bits(plain, gradients(model, forward, room))
    assert len(large(room)) == 1, room.ledger
    within = er.Activations(model, meter=0)
    assert error_of(plain, gradients(model, forward, within)) < 1e-3
    kinds = {reader for row in within.ledger.rows for reader in row.readers}
    assert "LeakyRelu.result" in kinds
    assert not any(reader.startswith("CopySlices") for reader in kinds)


def test_instance_normalisation_that_keeps_statistics_is_torchs_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.InstanceNorm2d(16, track_running_stats=True))
    twin = nn.Sequential(nn.Conv2d(3, 16, 3), nn.InstanceNorm2d(16, track_running_stats=True))
    twin.load_state_dict(model.state_dict())
    x = torch.randn(4, 3, 18, 18)
    with er.Activations(model, tolerance=0):
        ours = model(x)
    assert torch.equal(ours, twin(x))
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers(), strict=True))


class Grouped(nn.Module):
    """Attention of which two heads share a key and a value."""

    def __init__(self, *, interleaved: bool) -> None:
        super().__init__()
        self.q, self.kv, self.interleaved = nn.Linear(64, 64), nn.Linear(64, 64), interleaved

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).view(16, 16, 4, 16).transpose(1, 2)
        k, v = self.kv(x).view(16, 16, 4, 16).transpose(1, 2).chunk(2, 1)
        if self.interleaved:
            k, v = (torch.repeat_interleave(t, 2, 1) for t in (k, v))
        else:
            wide = (16, 2, 2, 16, 16)
            k, v = (t[:, :, None].expand(wide).reshape(16, 4, 16, 16) for t in (k, v))
        return functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("interleaved", [False, True])
def test_keys_and_values_that_are_repeated_are_held_once(interleaved: bool) -> None:
    torch.manual_seed(0)
    model = Grouped(interleaved=interleaved)

    def forward(model: Any) -> tuple[Tensor, ...]:
        return (model(torch.randn(16, 16, 64)).square().mean(),)

    plain = gradients(model, forward)
    room = er.Activations(model, tolerance=0)
    assert same_bits(plain, gradients(model, forward, room))
    for part in ("key", "value"):
        reader = f"ScaledDotProductFlashAttentionForCpu.{part}"
        (row,) = (r for r in room.ledger.rows if reader in r.readers)
        assert row.kept_bytes == 16 * 2 * 16 * 16 * 4
    within = er.Activations(model, meter=0)
    assert error_of(plain, gradients(model, forward, within)) < 1e-3
    nothing_is_left(within)


def test_few_classes_take_no_more_than_plainly() -> None:
    """Per pixel, rows of sums would take most of what they save."""
    torch.manual_seed(0)
    model = nn.Conv2d(1, 3, 1)
    x, y = torch.randn(2, 1, 256, 256), torch.randint(0, 3, (2, 256, 256))
    room = er.Activations(model, tolerance=0)
    with room:
        loss = functional.cross_entropy(model(x), y)
    loss.backward()
    assert room.ledger.kept_bytes < 1.1 * 3 * x.nbytes


@pytest.mark.parametrize("sizes", [(), ((),), ((3, 1), (4,)), ((1, 4), (3, 1), ()), ((2, 0), (1,))])
def test_shapes_broadcast_as_in_torch(sizes: tuple[tuple[int, ...], ...]) -> None:
    assert broadcast(sizes) == tuple(torch.broadcast_shapes(*sizes))


def test_shapes_that_do_not_broadcast() -> None:
    with pytest.raises(RuntimeError, match="do not broadcast"):
        broadcast([(2, 3), (4,)])
