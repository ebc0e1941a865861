"""Layouts: what is read where it lies, what comes back how, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from elbowroom import Bound, InvalidArgument, decode, encode
from elbowroom.codec.bound import Array
from tests.codec.arrays import check, tensors


@settings(max_examples=200)
@given(x=tensors())
def test_dense_tensors_come_back_with_their_strides(x: torch.Tensor) -> None:
    y = decode(encode(x, Bound.absolute(1e-2)))
    order = sorted(range(x.ndim), key=lambda axis: -x.stride(axis))
    if x.numel() and x.permute(order).is_contiguous():
        long = [axis for axis in range(x.ndim) if x.shape[axis] > 1]
        assert [y.stride(axis) for axis in long] == [x.stride(axis) for axis in long]
    else:
        assert y.is_contiguous()


@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5), (2, 1, 4, 5), (1, 3, 4, 5), (2, 3, 1, 1), (1, 1, 1, 1), (2, 3, 1, 5)]
)
def test_channels_last_is_restored_exactly(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).to(memory_format=torch.channels_last)
    blob = encode(x, Bound.absolute(1e-2))
    for y in (decode(blob), decode(blob.tobytes())):
        assert y.stride() == x.stride()
        assert y.is_contiguous(memory_format=torch.channels_last)


def test_dense_arrays_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("copied")

    monkeypatch.setattr(torch.Tensor, "contiguous", fail)
    monkeypatch.setattr(torch.Tensor, "clone", fail)
    monkeypatch.setattr(np, "array", fail)
    encode(torch.randn(3, 4, 5).permute(2, 0, 1), Bound.absolute(1))
    encode(np.ones((3, 4, 5)).transpose(1, 2, 0), Bound.absolute(1))
    encode(np.asfortranarray(np.ones((3, 4))), Bound.absolute(1))


def test_fortran_order_is_restored() -> None:
    x = np.asfortranarray(np.random.default_rng(0).standard_normal((30, 40)))
    y = decode(encode(x, Bound.absolute(1e-3)))
    assert y.flags.f_contiguous
    assert y.strides == x.strides


def test_rows_are_those_of_the_memory() -> None:
    def geometry(x: Array) -> tuple[int, int]:
        recipe = encode(x, Bound.absolute(1)).recipe
        return recipe.columns, recipe.rows

    assert geometry(torch.zeros(2, 3, 4, 5)) == (5, 4)
    assert geometry(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)) == (3, 5)
    assert geometry(torch.zeros(7, 1, 9, 1)) == (9, 7)
    assert geometry(torch.zeros(7)) == (7, 1)
    assert geometry(torch.zeros(1)) == (1, 1)
    assert geometry(torch.zeros(())) == (0, 0)


def test_unusual_memory() -> None:
    raw = np.zeros(41, np.uint8)
    unaligned = raw[1:].view(np.float32)
    unaligned[:] = 1.5
    check(unaligned, Bound.lossless())
    check(torch.frombuffer(bytearray(41), dtype=torch.float32, offset=1), Bound.lossless())
    read_only = np.arange(6.0)
    read_only.flags.writeable = False
    check(read_only, Bound.lossless())
    records = np.zeros(5, dtype=[("a", np.int8), ("b", np.float32)])
    records["b"] = 2.5
    check(records["b"], Bound.lossless())
    overlapping = torch.arange(5.0).as_strided((4, 2), (1, 1))
    check(overlapping, Bound.lossless())
    check(np.arange(24.0).reshape(2, 3, 4)[::-1, :, ::-2], Bound.lossless())


def test_many_axes() -> None:
    check(torch.randn([2] * 10), Bound.absolute(1e-2))
    check(torch.zeros([1] * 32), Bound.absolute(1e-2))
    with pytest.raises(InvalidArgument, match="at most 32 dimensions were expected, got 33"):
        encode(torch.zeros([1] * 33), Bound.lossless())
    with pytest.raises(InvalidArgument, match="at most 32 dimensions were expected, got 40"):
        encode(np.zeros([1] * 40), Bound.lossless())


def test_subclasses_and_views_of_other_kinds(tmp_path: Any) -> None:
    parameter = torch.nn.Parameter(torch.randn(50))
    assert type(decode(check(parameter, Bound.absolute(1e-2)))) is torch.Tensor
    stored = np.memmap(tmp_path / "x", np.float32, "w+", shape=(50,))
    stored[:] = 1
    check(np.asarray(stored), Bound.lossless())
    assert type(decode(encode(stored, Bound.lossless()))) is np.ndarray

    class Tagged(torch.Tensor):
        pass

    assert type(decode(encode(torch.ones(4).as_subclass(Tagged), Bound.lossless()))) is torch.Tensor
    negative = torch.randn(5, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    assert torch.equal(decode(encode(negative, Bound.lossless())), negative)


DENSE = r"a dense array of float16, .* was expected, got "


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: torch.zeros(3, dtype=torch.complex64), DENSE + r".*complex64: encode torch.view_"),
        (lambda: np.zeros(3, np.complex128), DENSE + r"an array of complex128: encode x.real"),
        (lambda: torch.zeros(3, device="meta"), DENSE + r"a tensor on the device meta: material"),
        (lambda: torch.eye(3).to_sparse(), DENSE + r"a tensor of layout torch.sparse_coo: encode"),
        (lambda: torch.zeros(3, dtype=torch.float8_e4m3fn), DENSE + r".*float8.*x.view\(torch.u"),
        (lambda: np.zeros(3, object), DENSE + r"an array of object: convert it"),
        (lambda: np.array(["a"]), DENSE + r"an array of <U1: convert it"),
        (lambda: np.zeros(3, "M8[s]"), DENSE + r"an array of datetime64\[s\]: convert it"),
        (lambda: np.zeros(3, np.longdouble), DENSE + r"an array of float128: convert it"),
        (lambda: np.ma.zeros(3), DENSE + r"a masked array: encode x.filled"),
        (lambda: [1.0, 2.0], r"a torch tensor or a numpy array was expected, got list: pass"),
        (lambda: 1.0, r"a torch tensor or a numpy array was expected, got float: pass"),
        (lambda: None, r"a torch tensor or a numpy array was expected, got NoneType: pass"),
    ],
)
def test_arrays_that_are_refused(make: Any, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        encode(make(), Bound.absolute(1))


@pytest.mark.filterwarnings("ignore")
def test_quantised_and_nested_tensors_are_refused() -> None:
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(InvalidArgument, match=r"a quantised tensor: encode x.int_repr\(\)"):
        encode(quantised, Bound.absolute(1))
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
        with pytest.raises(InvalidArgument, match="a nested tensor: encode the parts"):
            encode(nested, Bound.absolute(1))


def test_tensors_without_memory_are_refused() -> None:
    freed = torch.ones(10)
    freed.untyped_storage().resize_(0)
    with pytest.raises(InvalidArgument, match="memory of its own was expected"):
        encode(freed, Bound.absolute(1))
    with pytest.raises(InvalidArgument, match="memory of its own was expected"):
        torch.func.vmap(lambda row: encode(row, Bound.absolute(1)))(torch.ones(3, 4))
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)
    with pytest.raises(InvalidArgument, match="a FakeTensor, which wraps other tensors"):
        encode(fake, Bound.absolute(1))


@pytest.mark.parametrize("view", ["rows", "columns", "every other", "expanded"])
def test_tensors_that_reach_beyond_their_storage_are_refused(view: str) -> None:
    x = torch.ones(20, 30)
    part = {"rows": x, "columns": x.T, "every other": x[:, ::2], "expanded": x[:, :1].expand(20, 9)}
    x.untyped_storage().resize_(1000)
    with pytest.raises(
        InvalidArgument, match=r"must lie within its storage, got shape .* of 1000:"
    ):
        encode(part[view], Bound.absolute(1))
    # What is left can be encoded, and so can nothing at all.
    assert torch.equal(decode(encode(x[:8], Bound.lossless())), x[:8])
    assert decode(encode(x[15:15], Bound.lossless())).shape == (0, 30)
