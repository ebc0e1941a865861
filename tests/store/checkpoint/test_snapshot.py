"""Copies of tensors in memory that is there: the same bytes, whatever way they lie."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from elbowroom.store.checkpoint.layout import DTYPES, Layout, place_over
from elbowroom.store.checkpoint.snapshot import Buffer, Piece, copy_tensors, lay_out

MAKERS: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.randn(300, 70),
    "columns": lambda: torch.randn(70, 300).t(),
    "gaps": lambda: torch.randn(300, 70)[:, ::2],
    "an offset": lambda: torch.randn(5000)[3:],
    "one value over and over": lambda: torch.randn(1, 5).expand(40, 5),
    "a number": lambda: torch.tensor(3.0),
    "nothing": lambda: torch.empty(0, 4),
    "channels last": lambda: torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),
    "a parameter": lambda: torch.nn.Parameter(torch.randn(2000, 3)),
    "conjugates": lambda: torch.randn(900, dtype=torch.complex64).conj(),
    "negatives": lambda: torch.randn(900, dtype=torch.complex64).conj().imag,
    "zeros that lie nowhere": lambda: torch._efficientzerotensor((40, 4)),
    "bytes": lambda: torch.randint(0, 255, (4097,), dtype=torch.uint8),
    "small floats": lambda: torch.randn(777).to(torch.float8_e4m3fn),
    "answers": lambda: torch.rand(9000) > 0.5,
    "a few megabytes": lambda: torch.randn(1 << 20),
}


def copy(tensors: list[Tensor], threads: int | None = None) -> list[Tensor]:
    named = [(f"[{number}]", tensor) for number, tensor in enumerate(tensors)]
    pieces, nbytes = lay_out(named)
    buffer = Buffer()
    buffer.reserve(nbytes)
    buffer.bytes[:] = 0xA5
    copy_tensors(named, pieces, buffer, threads)
    covered = np.zeros(len(buffer.bytes), bool)
    for piece in pieces:
        covered[piece.start : piece.start + piece.layout.nbytes] = True
    assert (buffer.bytes[~covered] == 0xA5).all()
    return [buffer.tensor(piece).clone() for piece in pieces]


def same(one: Tensor, other: Tensor) -> bool:
    one, other = (t.detach().resolve_conj().resolve_neg().contiguous() for t in (one, other))
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_copies_have_the_bytes_of_the_tensors(isa: str, threads: int | None) -> None:
    tensors = [make() for make in MAKERS.values()]
    for name, tensor, copied in zip(MAKERS, tensors, copy(tensors, threads), strict=True):
        assert same(tensor, copied), name


def test_what_happens_to_a_tensor_is_not_seen_in_its_copy() -> None:
    tensor = torch.ones(100_000)
    (copied,) = copy([tensor])
    tensor.zero_()
    assert copied.sum().item() == 100_000


@pytest.mark.parametrize("nbytes", [1, 4096, 100_000, 8 << 20, (9 << 20) + 1])
def test_buffers_have_their_pages_and_lie_on_them(nbytes: int) -> None:
    buffer = Buffer()
    buffer.reserve(nbytes)
    assert nbytes <= len(buffer.bytes) <= nbytes + (2 << 20)
    assert buffer.bytes.ctypes.data % (4096 if nbytes < 8 << 20 else 2 << 20) == 0
    assert not buffer.bytes.any()
    before = buffer.bytes
    buffer.reserve(nbytes // 2)
    assert buffer.bytes is before


def test_buffers_grow() -> None:
    buffer = Buffer()
    buffer.reserve(5000)
    buffer.reserve(20 << 20)
    layout = Layout(dtype="float32", shape=(5 << 20,), stride=(1,))
    piece = Piece(where="all", layout=layout, start=0)
    buffer.tensor(piece).fill_(2.5)
    assert (buffer.bytes[: 20 << 20].view(np.float32) == 2.5).all()


def test_places_of_all_types_are_tensors_of_them() -> None:
    for name in DTYPES:
        layout = Layout(dtype=name, shape=(4,), stride=(1,))
        place = place_over(torch.zeros(layout.nbytes, dtype=torch.uint8), layout)
        assert str(place.dtype) == f"torch.{name}" and place.shape == (4,)
