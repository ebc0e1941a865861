"""Convolutions in pieces: near what they are in one go, and smaller at their peak."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.keep.activations import convolutions
from elbowroom.keep.activations.convolutions import InPieces, is_convolution
from elbowroom.keep.activations.faults import Faults
from elbowroom.keep.activations.heap import ALWAYS_BYTES
from elbowroom.keep.activations.scratch import Scratch, Shown

CONVOLUTIONS: tuple[dict[str, Any], ...] = (
    {"groups": 1},
    {"groups": 4, "stride": 2, "bias": False},
    {"dilation": 2, "memory_format": torch.channels_last},
    {"transposed": True, "stride": 2},
)


def make_layer(how: Any) -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    make = nn.ConvTranspose2d if how.get("transposed") else nn.Conv2d
    names = ("groups", "stride", "dilation", "bias", "output_padding")
    layer: Any = make(8, 12, 3, padding=1, **{k: v for k, v in how.items() if k in names})
    x = torch.randn(5, 8, 20, 20).to(memory_format=how.get("memory_format", torch.preserve_format))
    return layer, x.requires_grad_()


@pytest.mark.parametrize("stand_in", [Scratch, Shown])
@pytest.mark.parametrize("how", CONVOLUTIONS)
def test_backward_goes_through_the_batch(how: Any, stand_in: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(convolutions, "PIECE_BYTES", 8 * 20 * 20 * 4)
    layer, x = make_layer(how)
    wanted = [x, *layer.parameters()]
    expected = torch.autograd.grad(layer(x).square().sum(), wanted)
    lent: list[Tensor] = []

    def unpack(held: Tensor) -> Tensor:
        if held.shape != x.shape:
            return held
        lent.append(held.clone())
        return stand_in.over(lent[-1], lent[-1].clone, Faults())

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), unpack):
        y = layer(x)
    found = torch.autograd.grad(y.square().sum(), wanted)
    assert (found[0].data_ptr() == lent[0].data_ptr()) == (stand_in is Scratch)
    assert torch.equal(lent[0], x) == (stand_in is Shown)
    for one, two in zip(found, expected, strict=True):
        assert one.stride() == two.stride()
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", CONVOLUTIONS)
def test_forward_goes_through_the_batch(how: Any, monkeypatch: Any) -> None:
    """As many bytes as are really there are expected, and autograd sees one convolution."""
    layer, x = make_layer(how)
    expected = layer(x)
    gradients = torch.autograd.grad(expected.square().sum(), [x, *layer.parameters()])
    stated: list[int] = []
    plain = convolutions._result_bytes
    monkeypatch.setattr(convolutions, "PIECE_BYTES", 8 * 20 * 20 * 4)
    monkeypatch.setattr(
        convolutions, "_result_bytes", lambda *args: stated.append(plain(*args)) or stated[-1]
    )
    with InPieces(Faults()):
        found = layer(x)
    assert stated == [expected.nbytes]
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    node: Any = found.grad_fn
    assert node.name() == expected.grad_fn.name() == "ConvolutionBackward0"
    again = torch.autograd.grad(found.square().sum(), [x, *layer.parameters()])
    for one, two in zip(again, gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 6, 5, 2, 2), (6, 4, 50)),
        (nn.Conv3d(4, 6, 3, (1, 2, 2), 1), (6, 4, 8, 9, 10)),
        (nn.ConvTranspose1d(4, 6, 5, 3, 2, output_padding=1), (6, 4, 50)),
        (nn.Conv2d(4, 6, 3, padding="same"), (6, 4, 9, 9)),
    ],
    ids=["1d", "3d", "transposed 1d", "same"],
)
def test_other_dimensions(layer: Any, shape: tuple[int, ...], monkeypatch: Any) -> None:
    monkeypatch.setattr(convolutions, "PIECE_BYTES", 64)
    torch.manual_seed(0)
    x = torch.randn(shape)
    expected = layer(x)
    with InPieces(Faults()):
        found = layer(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_one_sample_and_empty_batches_stay_whole(monkeypatch: Any) -> None:
    monkeypatch.setattr(convolutions, "PIECE_BYTES", 64)
    layer = nn.Conv2d(4, 6, 3)
    for shape in ((4, 9, 9), (1, 4, 9, 9), (0, 4, 9, 9)):
        x = torch.randn(shape)
        with InPieces(Faults()):
            found = layer(x)
        assert torch.equal(found, layer(x))


def test_functions_are_known() -> None:
    assert is_convolution(torch.nn.functional.conv2d)
    assert is_convolution(torch.nn.functional.conv_transpose3d)
    assert not is_convolution(torch.nn.functional.linear)


def test_exact_rooms_never_cut_a_batch(monkeypatch: Any) -> None:
    def fail(*args: Any) -> None:
        raise AssertionError("a batch was cut")

    monkeypatch.setattr(convolutions, "_forward", fail)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    room = er.Activations(model, tolerance=0)
    if room._memory is not None:
        room._memory.note_saved(ALWAYS_BYTES)
        assert room._memory.is_large
    with room:
        loss = model(torch.randn(4, 3, 32, 32)).square().mean()
    loss.backward()


SHARED = """
import torch
from torch import nn
import elbowroom as er
from elbowroom.keep.activations import convolutions

class Fork(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.one, self.two = nn.Conv2d(32, 8, 1), nn.Conv2d(32, 8, 3, padding=1)
    def forward(self, x):
        y = torch.relu(self.first(x))
        return self.one(y) * self.two(y)

torch.manual_seed(0)
network = Fork()
x = torch.randn(64, 3, 64, 64)
wanted = list(network.parameters())
expected = torch.autograd.grad(network(x).square().mean(), wanted)
calls = []
plain = convolutions.backward
from elbowroom.keep.activations import scratch
def count(x, args, kwargs, *, is_over):
    calls.append(is_over)
    return plain(x, args, kwargs, is_over=is_over)
from functools import partial
operation = torch.ops.aten.convolution_backward.default
scratch.Shown.ways = dict(scratch.Shown.ways)
scratch.Shown.ways[operation] = scratch._by_name(partial(count, is_over=False))
scratch.Scratch.ways = dict(scratch.Scratch.ways)
scratch.Scratch.ways[operation] = scratch._by_name(partial(count, is_over=True))
room = er.Activations(network, tolerance=0.01, meter=0, overhead=None)
room._memory.note_saved(1 << 30)
with room:
    loss = network(x).square().mean()
found = torch.autograd.grad(loss, wanted)
print(sorted(calls))
print(max(float((a - b).norm() / b.norm()) for a, b in zip(found, expected)) < 0.05)
"""


def test_an_input_with_two_readers_is_shown_to_the_first_and_lent_to_the_last() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHARED], capture_output=True, text=True, check=True
    )
    # The batch itself is the user's, and is shown too.
    assert done.stdout.split("\n")[:2] == ["[False, False, True]", "True"]


LARGE = """
import sys
import torch
from torch import nn
import elbowroom as er
from elbowroom.host import trim_heap
from elbowroom.keep.activations.gauge import Process

torch.manual_seed(0)
torch.set_num_threads(2)
blocks = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
          for _ in range(10)]
network = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.Conv2d(16, 1, 1))

def step(batch, room):
    with room:
        loss = network(torch.randn(batch, 3, 128, 128)).square().mean()
    loss.backward()
    network.zero_grad()

room = er.Activations(network, meter=0, overhead=None)
step(1, room)
trim_heap()
gauge = Process()
base = gauge.now()
for number in range(6):
    gauge.reset()
    step(32, room)
print(gauge.peak() - base, room.ledger.saved_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the process's peak is told by Linux")
def test_a_large_pass_takes_a_part_of_what_it_would_save() -> None:
    """Five tensors of a layer at work, besides what waits; plainly more than twenty wait."""
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    peak, saved = map(int, done.stdout.split())
    assert saved > 600 << 20
    assert peak < saved / 2.5
