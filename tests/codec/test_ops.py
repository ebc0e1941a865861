"""The torch operators: registered properly, traceable, and deterministic."""

from typing import Any

import pytest
import torch
from torch.library import opcheck

import elbowroom as er
from elbowroom import Bound, CorruptData, InvalidArgument

ENCODE = torch.ops.elbowroom.encode
DECODE = torch.ops.elbowroom.decode

INPUTS = {
    "rows": lambda: torch.randn(2, 3, 4, 5),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "sliced": lambda: torch.randn(4, 10)[:, ::2],
    "gradient": lambda: torch.randn(50, requires_grad=True),
    "empty": lambda: torch.randn(0, 3),
    "scalar": lambda: torch.randn(()),
    "bfloat16": lambda: torch.randn(70).bfloat16(),
    "integers": lambda: torch.arange(70),
}


@pytest.mark.parametrize("name", INPUTS)
def test_operators_are_registered_as_torch_wants(name: str) -> None:
    x = INPUTS[name]()
    opcheck(ENCODE.default, (x, 1e-2))
    opcheck(ENCODE.default, (x, 1e-2, "range_relative", "dense"))
    buffer, length = ENCODE(x, 1e-2)
    opcheck(DECODE.default, (buffer, length, list(x.shape), x.dtype))


@pytest.mark.parametrize("name", INPUTS)
def test_operators_are_encode_and_decode(name: str) -> None:
    x = INPUTS[name]().detach()
    for mode, value in (
        ("absolute", 1e-2),
        ("range_relative", 1e-3),
        ("pointwise_relative", 0.1),
        ("lossless", 0.0),
    ):
        buffer, length = ENCODE(x, value, mode)
        end = int(length)
        assert end <= buffer.numel()
        assert not buffer[end:].any()
        y = DECODE(buffer, length, x.shape, x.dtype)
        assert getattr(Bound, mode)(*[value] * (mode != "lossless")).holds(x, y)
        assert y.is_contiguous()
        blob = er.Blob.frombytes(buffer[:end].numpy())
        assert torch.equal(er.decode(blob), y)
    assert torch.equal(ENCODE(x, 1e-2)[0], ENCODE(x, 1e-2)[0])


def test_capacity_does_not_depend_on_data() -> None:
    sizes = {ENCODE(x, 1e-2)[0].numel() for x in (torch.zeros(999), torch.randn(999) * 1e9)}
    assert len(sizes) == 1


# Inductor itself uses what torch has deprecated.
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_whole(backend: str, dynamic: bool) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        buffer, length = torch.ops.elbowroom.encode(x * 2, 1e-2, "absolute", "dense")
        return torch.ops.elbowroom.decode(buffer, length, x.shape, x.dtype) + 1

    torch._dynamo.reset()
    compiled: Any = torch.compile(step, backend=backend, fullgraph=True, dynamic=dynamic)
    for shape in ((3, 40), (5, 60)):
        x = torch.randn(shape)
        assert torch.equal(compiled(x), step(x))


def test_gradients_of_others_pass_by() -> None:
    x = torch.randn(5, requires_grad=True)
    buffer, length = ENCODE(x, 1e-2)
    assert not buffer.requires_grad
    y = DECODE(buffer, length, [5], torch.float32)
    assert not y.requires_grad


def test_refusals() -> None:
    x = torch.randn(10)
    with pytest.raises(InvalidArgument, match="mode must be one of absolute, lossless"):
        ENCODE(x, 1e-2, "relative")
    with pytest.raises(InvalidArgument, match="codec must be 'auto'"):
        ENCODE(x, 1e-2, "absolute", "zip")
    with pytest.raises(InvalidArgument, match="must be finite and positive"):
        ENCODE(x, -1.0)
    buffer, length = ENCODE(x, 1e-2)
    with pytest.raises(InvalidArgument, match=r"a blob of torch torch.float32 \[9\] was expected"):
        DECODE(buffer, length, [9], torch.float32)
    with pytest.raises(InvalidArgument, match="was expected, found <Blob"):
        DECODE(buffer, length, [10], torch.float64)
    with pytest.raises(InvalidArgument, match="a buffer of uint8 and a length within it"):
        DECODE(buffer, length + 1000, [10], torch.float32)
    with pytest.raises(InvalidArgument, match="a buffer of uint8 and a length within it"):
        DECODE(buffer.float(), length, [10], torch.float32)
    with pytest.raises(CorruptData):
        DECODE(buffer, length - 1, [10], torch.float32)
