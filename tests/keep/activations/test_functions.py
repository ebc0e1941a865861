"""Functions of every kind, also those where a small error could have no limit."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from tests.keep.activations.checking import agrees, error_of, gradients
from tests.keep.activations.framing import function

ACTIVATIONS = {
    name: function(call, 128, 128)
    for name, call in {
        "relu, in place": functional.relu_,
        "leaky": functional.leaky_relu,
        "leaky, upside down": lambda y: functional.leaky_relu(y, -0.5),
        "elu, in place": functional.elu_,
        "gelu, tanh": lambda y: functional.gelu(y, approximate="tanh"),
        "silu, in place": lambda y: functional.silu(y, inplace=True),
        "mish": functional.mish,
        "hard swish": functional.hardswish,
        "hard tanh": functional.hardtanh,
        "relu6": functional.relu6,
        "softplus": functional.softplus,
        "log sigmoid": functional.logsigmoid,
        "glu": functional.glu,
        "random leaky": lambda y: functional.rrelu(y, training=True),
        "threshold": lambda y: functional.threshold(y, 0.1, 20),
        "softmax": lambda y: y.softmax(-1) * 50,
        "log softmax": lambda y: y.log_softmax(0),
        "gumbel": lambda y: functional.gumbel_softmax(y, hard=True) * 50,
        "norm": lambda y: functional.normalize(y, dim=1) * 10,
        "square": lambda y: y.square() + y**3,
        "largest": lambda y: y.max(1)[0],
        "clamped": lambda y: y.clamp(-0.5, 0.5) + y.clamp_min(0.3),
        "clamped by tensors": lambda y: torch.clamp(y, y.detach().mean(0), y.detach().max(0)[0]),
        "absolute": lambda y: y.abs() + y.bfloat16().abs(),
        "hard sigmoid": functional.hardsigmoid,
        "shrunk": lambda y: functional.hardshrink(y) + functional.softshrink(y * 2),
        "parametric": lambda y: functional.prelu(y, torch.tensor([0.3])),
        "maximum": lambda y: torch.maximum(y, y.roll(1)),
        "where": lambda y: torch.where(y > 0, y, y * y),
        "dropped out": lambda y: functional.dropout(y, 0.4),
        "dropped channels": lambda y: functional.dropout2d(y.view(128, 2, 8, 8), 0.4),
        "dropped, alpha": lambda y: functional.alpha_dropout(y, 0.3, training=True),
    }.items()
}

# At their edges an error would be without limit: backward divides by what was saved.
SINGULAR = {
    name: function(call, 128, 128)
    for name, call in {
        "logarithm": lambda y: y.abs().log(),
        "root": lambda y: y.abs().sqrt() + y.abs() ** 0.3,
        "power, both tensors": lambda y: y.abs().clamp_min(1e-6) ** y,
        "reciprocal root": lambda y: (y.abs() + 0.02).rsqrt(),
        "quotient": lambda y: y / (y.roll(1).abs() + 0.02),
        "inverse": lambda y: (y.abs() + 0.1).reciprocal() + (y.abs() + 0.1) ** -2,
        "arc cosine": lambda y: y.sigmoid().acos() + y.tanh().asin(),
        "logit": lambda y: (y * 9).sigmoid().logit(),
        "product": lambda y: y.view(128, 32, 4).prod(-1) + y.view(128, 32, 4).cumprod(-1)[..., -1],
        "distance": lambda y: torch.cdist(y, y + 0.01),
        "angle": lambda y: torch.atan2(y, y.roll(1)),
        "far apart": lambda y: (y * 99).log_softmax(-1),
        "deviation": lambda y: y.view(-1, 2).std(-1),
        "sum of exponentials": lambda y: (y * 99).logsumexp(-1),
        "probability": lambda y: functional.binary_cross_entropy(
            (y * 9).sigmoid(), (y.detach() > 0).float(), reduction="none"
        ),
        "factorisation": lambda y: torch.linalg.cholesky(y.T @ y + 0.1 * torch.eye(128)),
        "solution": lambda y: torch.linalg.solve(y + 20 * torch.eye(128), y),
        "singular values": lambda y: torch.linalg.svd(y)[0],
        "complex": lambda y: torch.fft.fft(y).abs(),
        "complex, conjugated": lambda y: (torch.fft.fft(y).conj() * torch.fft.fft(y.exp())).imag,
        "negated view": lambda y: torch.complex(y, y).conj().imag.exp(),
    }.items()
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_function(name: str, caplog: pytest.LogCaptureFixture) -> None:
    agrees(*ACTIVATIONS[name])
    assert not [r for r in caplog.records if "not understood" in r.message]


@pytest.mark.parametrize("name", SINGULAR)
def test_function_with_an_edge(name: str, caplog: pytest.LogCaptureFixture) -> None:
    agrees(*SINGULAR[name], near=0.1)
    assert not [r for r in caplog.records if "not understood" in r.message]


def on_part(call: Any) -> Any:
    """In place, on half of the columns."""

    def found(y: Tensor) -> Tensor:
        y = y * 1
        call(y[:, :64])
        return y

    return found


def speech(y: Tensor) -> Tensor:
    """One value for a batch of sequences."""
    labels = torch.arange(40).view(8, 5) % 63 + 1
    lengths = torch.full((8,), 64), torch.full((8,), 5)
    return functional.ctc_loss(y[:64].view(64, 8, -1).log_softmax(-1), labels % 15 + 1, *lengths)


# What backward compares or divides by alone: gradients without any error.
COMPARED = {
    "maximum": lambda y: torch.maximum(y, y.roll(1)),
    "minimum": lambda y: torch.fmin(y, y.roll(1)),
    "largest of rows": lambda y: y.amax(1),
    "largest of all": lambda y: y.max(),
    "both ends": lambda y: torch.stack(torch.aminmax(y, dim=1)),
    "median": lambda y: y.median(),
    "clamped by tensors": lambda y: torch.clamp(y, y.roll(1), y.roll(1) + 1),
    "clamped by one tensor": lambda y: torch.clamp_min(y, y.roll(1)),
    "copied sign": lambda y: torch.copysign(y, y.roll(1)),
    "hypotenuse": lambda y: torch.hypot(y, y.roll(1)),
    "deviation and mean": lambda y: torch.std_mean(y.view(-1, 2), dim=1)[0],
    "quotient that is added": lambda y: torch.addcdiv(y, torch.ones(128, 128), y),
    "entropy": lambda y: torch.special.entr(y.abs() + 1e-4),
    "distance": lambda y: torch.cdist(y, y.roll(1), p=1),
    "scattered": lambda y: torch.zeros(128, 128).scatter_reduce(
        1, torch.arange(128 * 128).view(128, 128) % 37, y, "amax"
    ),
    "places in a grid": lambda y: functional.grid_sample(
        torch.arange(4096.0).sin().view(1, 1, 64, 64).requires_grad_(),
        y.clamp(-0.9, 0.9).view(1, 64, 128, 2),
        align_corners=False,
    ),
    "sequences": speech,
    "leaky, in place": lambda y: functional.leaky_relu_(y * 1),
    "leaky, in place on a part": on_part(functional.leaky_relu_),
    "relu, in place on a part": on_part(functional.relu_),
    "clamp, in place on a part": on_part(lambda y: y.clamp_(-0.5, 0.5)),
    "logarithm, in place on a part": on_part(lambda y: y.abs_().log_()),
    "parametric": lambda y: functional.prelu(y, torch.tensor([0.3])),
}


@pytest.mark.parametrize("name", COMPARED)
def test_what_is_compared_has_no_error(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(128, 128)

    def forward(model: Any) -> tuple[Tensor, ...]:
        y = COMPARED[name](model(torch.randn(128, 128)))
        return (y.sum() + y.flatten()[::3].sum(),)

    room = er.Activations(model)
    for seed in range(3):
        plain = gradients(model, forward, seed=seed)
        assert error_of(plain, gradients(model, forward, room, seed=seed)) == 0


STEPPED = {
    "leaky": functional.leaky_relu,
    "leaky, in place": functional.leaky_relu_,
    "parametric": lambda y: functional.prelu(y, torch.tensor([0.3])),
    "selu": functional.selu,
    "elu, in place": lambda y: functional.elu_(y, 2.0),
    "random leaky": functional.rrelu,
}


@pytest.mark.parametrize("name", STEPPED)
@pytest.mark.parametrize("memory", [None, "8 GB"])
def test_values_stay_on_their_side_of_a_step(name: str, memory: str | None) -> None:
    """Backward jumps at zero, and another function reads the values."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256, bias=False))
    x = torch.randn(1024, 256)
    # Many values lie close to zero.
    x *= torch.rand(1024, 1) ** 8

    def gradient(room: Any) -> Tensor:
        with room:
            y = model[0](x)
            y.retain_grad()
            z = STEPPED[name](y * 1)
            loss = z.sum() + 1e-9 * model[1](z).sum()
        loss.backward()
        return y.grad

    plain = gradient(nullcontext())
    ours = gradient(er.Activations(model, tolerance=0.5, memory=memory))
    assert float((plain - ours).abs().max()) < 0.2


@pytest.mark.parametrize(
    "call",
    [
        lambda y: y.clamp(-0.5, 0.5),
        functional.relu6,
        functional.hardtanh,
        functional.hardsigmoid,
        lambda y: functional.threshold(y, 0.1, 20),
        torch.abs,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_limits_take_a_bit_or_two_and_no_error(call: Any, dtype: torch.dtype) -> None:
    """Also for values at a limit, NaN and infinities."""
    model: Any = nn.Linear(64, 64).to(dtype)
    x = torch.randn(256, 64).to(dtype)
    odd = torch.tensor(
        [0.5, -0.5, 0.0, -0.0, 1, -1, 6, 3, -3, 0.1, *[float("nan")] * 2], dtype=dtype
    )
    wrong = torch.cat([odd, torch.tensor([float("inf"), -float("inf")], dtype=dtype)])

    def gradient(room: Any) -> Tensor:
        def forward() -> Tensor:
            y = model(x)
            y = torch.cat([y.flatten(), wrong + 0 * y.sum()])
            return call(y).nan_to_num(0, 0, 0).float().sum()

        with room:
            loss = forward()
        return torch.autograd.grad(loss, model.bias)[0]

    plain = gradient(nullcontext())
    room = er.Activations(model, tolerance=0)
    assert torch.equal(plain, gradient(room))
    row = next(row for row in room.ledger.rows if row.method == "bands")
    assert row.error_class == "M"
    assert row.saved_bytes > 6 * row.kept_bytes
