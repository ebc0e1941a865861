"""Transforms, custom functions, and tensors of every type, shape and kind."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from tests.keep.activations.checking import (
    TOLERANCES,
    gradients,
    matches,
    nothing_is_left,
    same_bits,
)
from tests.keep.activations.models import loss_of, smooth


def test_transforms_are_refused_by_torch_and_leave_no_trace() -> None:
    """torch.func does not take hooks: its own sentence says so, and the room goes on."""
    model = smooth()
    plain = gradients(model, loss_of)
    room = er.Activations(model, tolerance=0)
    with pytest.raises(RuntimeError, match="saved tensor hooks"), room:
        torch.func.grad(lambda x: model(x).sum())(torch.randn(4, 64))
    nothing_is_left(room)
    assert same_bits(plain, gradients(model, loss_of, room))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_vmap_and_forward_mode(tolerance: float) -> None:
    model = smooth()

    def mapped(model: Any) -> tuple[Tensor, ...]:
        return (torch.vmap(model)(torch.randn(4, 128, 64)).square().sum(),)

    def dual(model: Any) -> tuple[Tensor, ...]:
        x, slope = torch.randn(128, 64), torch.randn(128, 64)
        with torch.autograd.forward_ad.dual_level():
            y = model(torch.autograd.forward_ad.make_dual(x, slope))
            value, change = torch.autograd.forward_ad.unpack_dual(y)
            assert change is not None
            return (value.square().sum() + change.square().sum(),)

    for forward in (mapped, dual):
        plain = gradients(model, forward)
        room = er.Activations(model, tolerance=tolerance)
        ours = gradients(model, forward, room)
        matches(plain, ours, tolerance)
        nothing_is_left(room)


def test_another_thread_is_not_seen() -> None:
    """Hooks belong to a thread: what others compute meanwhile stays plain, and right."""
    model = smooth()
    other = smooth()
    plain = gradients(other, loss_of)
    room = er.Activations(model, tolerance=0)
    found: list[Any] = []
    with room:
        loss = model(torch.randn(128, 64)).sum()
        thread = threading.Thread(target=lambda: found.append(gradients(other, loss_of)))
        thread.start()
        thread.join()
    loss.backward()
    assert same_bits(plain, found[0])
    nothing_is_left(room)


# Custom functions.


class Cube(torch.autograd.Function):
    """Keeps one tensor the right way, and one as an attribute, which no hook sees."""

    seen: list[tuple[Any, ...]]

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.kept = x.detach() ** 2
        return x**3

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        Cube.seen.append((x.dtype, tuple(x.shape), x.device.type, x.requires_grad))
        return gradients[0] * 3 * ctx.kept


def test_tensors_kept_as_attributes_are_invisible_and_right() -> None:
    Cube.seen = []
    model: Any = nn.Linear(64, 64)

    def forward(model: Any) -> tuple[Tensor, ...]:
        return (Cube.apply(model(torch.randn(128, 64))).sum(),)

    plain = gradients(model, forward)
    room = er.Activations(model)
    ours = gradients(model, forward, room)
    # x comes back within its bound; what the gradient is made of was never given to us.
    assert same_bits(plain, ours)
    assert Cube.seen[0] == Cube.seen[1]
    # Of the input too nobody but autograd has hold.
    assert sum(row.saved_bytes for row in room.ledger.rows) == 2 * 128 * 64 * 4


DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_types_and_shapes_come_back(dtype: torch.dtype, tolerance: float) -> None:
    """Autograd does not look at what an unpack hook returns: nothing may differ."""
    torch.manual_seed(0)
    base = torch.randn(64, 3, 8, 16).mul(50).to(dtype)
    views = [
        *(base, base.transpose(1, 3), base[:, 1:], base[::2, :, ::3], base.flatten()),
        *(base.to(memory_format=torch.channels_last), base[:1].expand(9, 3, 8, 16)),
        *(base[:0], base[0, 0, 0, 0], base.as_strided((50, 40, 30), (40, 20, 1))),
    ]
    restored: list[Tensor] = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, *held: Tensor) -> Tensor:
            ctx.save_for_backward(*held)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            restored.extend(ctx.saved_tensors)
            return (gradients[0], *[None] * len(views))

    model: Any = nn.Linear(1, 1)
    room = er.Activations(model, tolerance=tolerance)
    with room:
        loss: Any = Look.apply(model.weight, *views)
        loss = loss.sum()
    loss.backward()
    for view, tensor in zip(views, restored, strict=True):
        assert (view.shape, view.dtype) == (tensor.shape, tensor.dtype)
        if tolerance == 0 or not dtype.is_floating_point:
            assert torch.equal(view, tensor)
        else:
            spread = float(view.float().std()) if view.numel() > 1 else 0.0
            assert float((view - tensor).abs().float().sum()) <= spread / 50 * view.numel()
    nothing_is_left(room)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("layout", ["coo", "csr", "nested", "quantised", "subclass"])
def test_tensors_of_other_kinds_are_kept_as_they_are(layout: str, tolerance: float) -> None:
    model: Any = nn.Linear(64, 64)
    torch.manual_seed(0)
    matrix = torch.randn(64, 64).relu()

    class Own(Tensor):
        """Somebody's own tensor."""

    def forward(model: Any) -> tuple[Tensor, ...]:
        y = model(torch.randn(64, 64))
        if layout == "coo":
            out = torch.sparse.mm(matrix.to_sparse(), y).tanh()
        elif layout == "csr":
            out = (matrix.to_sparse_csr() @ y).tanh()
        elif layout == "nested":
            parts = torch.nested.as_nested_tensor([y[:9], y[9:]], layout=torch.jagged)
            out = functional.gelu(parts).values()
        elif layout == "quantised":
            out = torch.fake_quantize_per_tensor_affine(y, 0.1, 0, -128, 127).sigmoid()
        else:
            out = (y.as_subclass(Own) * y).sin().as_subclass(Tensor)
        return (out.square().sum(),)

    plain = gradients(model, forward)
    room = er.Activations(model, tolerance=tolerance)
    matches(plain, gradients(model, forward, room), tolerance)
    nothing_is_left(room)
