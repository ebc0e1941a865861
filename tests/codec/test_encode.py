"""encode: every kind of array under every bound, sizes, layouts, and what is refused."""

import math
import threading
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elbowroom import Blob, Bound, InvalidArgument, _native, decode, encode
from elbowroom.codec.backends import native
from elbowroom.codec.blob import header_nbytes, largest_nbytes
from elbowroom.codec.bound import Array, Mode
from elbowroom.codec.recipe import Rule
from tests.codec.arrays import (
    CONTENTS,
    DTYPES,
    FLOATS,
    arrays,
    bounds,
    make_values,
    same_bits,
    tensors,
)

CODECS = ["auto", "block", "dense", "raw"]


def native_order(x: Array) -> Array:
    return x if isinstance(x, torch.Tensor) else x.astype(x.dtype.newbyteorder("="))


def check(x: Array, bound: Bound, **options: Any) -> Blob:
    """Encode, decode, and hold the result against everything that is promised."""
    blob = encode(x, bound, **options)
    y = decode(blob)
    expected = native_order(x)
    assert type(y) is (torch.Tensor if isinstance(x, torch.Tensor) else np.ndarray)
    assert bound.holds(expected, y)
    assert blob.nbytes == len(blob.tobytes())
    assert blob.nbytes <= largest_nbytes(x.ndim, blob.item_count, expected.dtype.itemsize)
    assert (blob.shape, blob.dtype, blob.bound) == (tuple(x.shape), expected.dtype, bound)
    return blob


@settings(max_examples=400)
@given(
    x=arrays(),
    bound=bounds(),
    codec=st.sampled_from(CODECS),
    effort=st.sampled_from(["ratio", "speed"]),
    dither=st.one_of(st.none(), st.integers(0, 2**32 - 1)),
)
@example(torch.tensor(3.0), Bound.absolute(1), "dense", "ratio", None)
@example(torch.empty(0, 3), Bound.absolute(1), "dense", "ratio", 1)
def test_every_array_keeps_every_bound(
    x: Array, bound: Bound, codec: str, effort: str, dither: int | None
) -> None:
    if bound.keep_sign or bound.mode == Mode.POINTWISE_RELATIVE:
        dither = None
    check(x, bound, codec=codec, effort=effort, dither=dither)


@settings(max_examples=120)
@given(x=arrays(max_items=300), bound=bounds(), codec=st.sampled_from(CODECS))
def test_backends_write_the_same_bytes(x: Array, bound: Bound, codec: Any) -> None:
    fast = encode(x, bound, codec=codec)
    slow = encode(x, bound, codec=codec, backend="reference")
    assert fast == slow
    assert same_bits(decode(fast, backend="reference"), decode(slow))


@pytest.mark.parametrize("codec", ["block", "dense"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_of_many_chunks(dtype: torch.dtype, codec: Any) -> None:
    x = make_values(150_000, dtype, "smooth", 3).reshape(-1, 300)
    one = check(x, Bound.absolute(1e-2), codec=codec, threads=1)
    assert check(x, Bound.absolute(1e-2), codec=codec, threads=3) == one
    assert check(x, Bound.absolute(1e-2), codec=codec, threads=100) == one


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_larger_arrays_under_all_modes(dtype: torch.dtype, content: str) -> None:
    x = make_values(20_000, dtype, content, 5).reshape(20, 1000)
    for bound in (
        Bound.lossless(),
        Bound.absolute(1e-3),
        Bound.absolute(1e-3, keep_sign=True),
        Bound.range_relative(1e-3),
        Bound.pointwise_relative(1e-2),
    ):
        check(x, bound)
        check(x, bound, effort="speed")


def test_compression_happens() -> None:
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    assert encode(x, Bound.absolute(0.1)).ratio > 7
    assert encode(x, Bound.absolute(0.1), effort="speed").ratio > 5
    assert encode(torch.zeros(100_000), Bound.lossless()).ratio > 100


def test_auto_goes_by_size_and_effort() -> None:
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    bound = Bound.absolute(0.1)
    assert encode(x, bound).codec == "dense"
    assert encode(x, bound, effort="speed").codec == "block"
    assert encode(x[:1000], bound).codec == "block"
    for codec in ("block", "dense", "raw"):
        assert encode(x, bound, codec=codec).codec == codec


# --- sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["block", "dense", "auto"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_does_not_shrink_is_stored_raw(dtype: torch.dtype, codec: Any) -> None:
    x = make_values(9_000, dtype, "bits", 7)
    for bound in (Bound.lossless(), Bound.absolute(1e-30), Bound.pointwise_relative(1e-3)):
        blob = check(x, bound, codec=codec)
        assert blob.nbytes <= x.nbytes + header_nbytes(1, 1)


def test_tight_bounds_fall_back_to_lossless_before_raw() -> None:
    x = torch.linspace(1, 2, 20_000, dtype=torch.float64)
    blob = check(x, Bound.absolute(1e-15))
    assert blob.recipe.rule == Rule.EXACT
    assert same_bits(x, decode(blob))
    assert blob.codec == "dense"
    assert encode(x, Bound.absolute(1e-15), effort="speed").codec == "raw"


def test_segments_are_cut_into_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    x = make_values(1_000_000, torch.float32, "noisy", 1)
    whole = encode(x, Bound.range_relative(1e-3), codec="block", threads=1)
    assert len(whole.segments) == 1
    monkeypatch.setattr(native, "SEGMENT_BYTES", 1 << 20)
    pieces = encode(x, Bound.range_relative(1e-3), codec="block", threads=2)
    assert len(pieces.segments) == 4
    assert pieces == whole
    assert same_bits(decode(pieces, threads=2), decode(whole, threads=1))
    assert sum(segment.size for segment in pieces.segments) == whole.payload_nbytes


# --- layouts -----------------------------------------------------------------------------------


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


def test_gradients_are_ignored() -> None:
    x = torch.randn(100, requires_grad=True)
    y = decode(encode(x * 2, Bound.absolute(1e-2)))
    assert not y.requires_grad
    with torch.inference_mode():
        check(torch.randn(10), Bound.absolute(0.1))


def test_the_array_is_not_changed() -> None:
    x = torch.randn(10_000)
    before = x.clone()
    encode(x, Bound.absolute(1))
    assert torch.equal(x, before)
    assert x._version == 0


# --- rules -------------------------------------------------------------------------------------


def test_range_relative_is_the_absolute_bound_of_the_range() -> None:
    x = torch.tensor([0.0, 100.0, math.nan, -math.inf] * 50)
    recipe = encode(x, Bound.range_relative(0.01)).recipe
    assert recipe.limit == 1.0
    for flat in (torch.full((9,), 3.0), torch.tensor([math.nan, math.inf]), torch.zeros(0)):
        blob = check(flat, Bound.range_relative(0.01))
        assert blob.recipe.rule == Rule.EXACT


def test_signs_are_kept() -> None:
    x = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * 0.01
    y = decode(encode(x, Bound.absolute(0.1, keep_sign=True)))
    assert torch.equal(torch.sign(x), torch.sign(y))
    assert not torch.equal(x, y)


def test_dither_leaves_averages_alone() -> None:
    x = torch.full((200_000,), 0.3)
    bound = Bound.absolute(1.0)
    plain = decode(encode(x, bound))
    first = decode(check(x, bound, dither=1))
    second = decode(check(x, bound, dither=2))
    assert plain.mean() == 0.0
    assert abs(float(first.mean()) - 0.3) < 0.01
    assert not torch.equal(first, second)
    assert torch.equal(first, decode(encode(x, bound, dither=1)))


def test_dither_is_no_matter_to_what_is_lossless() -> None:
    for x, bound in ((torch.arange(9), Bound.absolute(1)), (torch.ones(9), Bound.lossless())):
        assert encode(x, bound, dither=3) == encode(x, bound)


def test_negative_zeros_are_cheap() -> None:
    x = torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    x[::3] = -0.0
    blob = check(x, Bound.absolute(0.1))
    assert blob.recipe.negative_zero
    assert blob.ratio > 6


# --- like --------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["block", "dense"])
def test_like_takes_over_the_choices(codec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = make_values(20_000, torch.float32, "smooth", 2).reshape(100, 200)
    first = encode(x, Bound.absolute(1e-2), codec=codec)
    for name in ("choose", "sample"):
        monkeypatch.setattr(_native, name, lambda *_: pytest.fail("sampled"))
    again = encode(x, Bound.absolute(1e-2), like=first)
    assert again == first
    tighter = encode(x + 1, Bound.absolute(1e-3), like=first)
    assert tighter.codec == codec
    assert tighter.recipe.limit < first.recipe.limit
    assert tighter.recipe.method == first.recipe.method
    assert Bound.absolute(1e-3).holds(x + 1, decode(tighter))


def test_like_that_does_not_fit_is_chosen_anew() -> None:
    x = make_values(20_000, torch.float32, "smooth", 2).reshape(100, 200)
    bound = Bound.absolute(1e-2)
    like = encode(x, bound)
    raw = encode(x, bound, codec="raw")
    for other, known in (
        (x.double(), like),
        (x.reshape(200, 100), like),
        (x.to(torch.int32), like),
        (x, raw),
        (x, Blob.frombytes(like.tobytes())),
    ):
        assert check(other, bound, like=known) == encode(other, bound)
    assert encode(x, bound, codec="block", like=like) == encode(x, bound, codec="block")
    assert encode(x, Bound.lossless(), like=like) == encode(x, Bound.lossless())


# --- refusals ----------------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bound": 1e-3}, r"what it is relative to, got 0.001: pass Bound.absolute\(0.001\)"),
        ({"bound": 1}, r"what it is relative to, got 1: pass Bound.absolute\(1\)"),
        ({"bound": None}, r"bound must be a Bound, got NoneType: pass Bound.absolute\(1e-3\)"),
        ({"bound": True}, r"bound must be a Bound, got bool"),
        ({"codec": "zip"}, r"codec must be 'auto', 'block', 'dense' or 'raw', got 'zip': leave"),
        ({"codec": None}, r"codec must be .*, got None"),
        ({"effort": "high"}, r"effort must be 'ratio' or 'speed', got 'high'"),
        ({"dither": -1}, r"dither must be a seed from 0 to 2\^32 - 1, got -1"),
        ({"dither": 2**32}, r"dither must be a seed"),
        ({"dither": 0.5}, r"dither must be a seed .* got 0.5: pass an integer or None"),
        ({"dither": 1, "bound": Bound.absolute(1, keep_sign=True)}, r"dither moves values across"),
        ({"dither": 1, "bound": Bound.pointwise_relative(0.1)}, r"dither needs an absolute or"),
        ({"like": b"x"}, r"like must be a blob, got bytes: pass what encode returned before"),
        ({"threads": 0}, r"threads must be a positive integer, got 0"),
        ({"threads": 1.5}, r"threads must be a positive integer, got 1.5"),
        ({"threads": True}, r"threads must be a positive integer, got True"),
        ({"backend": "cuda"}, r"a backend is 'native' or 'reference', got 'cuda'"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {"bound": Bound.absolute(1), **options}
    with pytest.raises(InvalidArgument, match=sentence):
        encode(torch.ones(3), **arguments)


# --- threads -----------------------------------------------------------------------------------


def test_the_environment_sets_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1 << 19)
    monkeypatch.setenv("ELBOWROOM_THREADS", "3")
    assert len(encode(x, Bound.absolute(1), codec="block").segments) == 3
    assert len(encode(x, Bound.absolute(1), codec="block", threads=2).segments) == 2
    assert len(encode(x[:100_000], Bound.absolute(1), codec="block").segments) == 1
    for wrong in ("0", "-1", "many", "1.5", "²"):
        monkeypatch.setenv("ELBOWROOM_THREADS", wrong)
        with pytest.raises(InvalidArgument, match="ELBOWROOM_THREADS must be a positive integer"):
            encode(x, Bound.absolute(1))


def test_many_threads_at_once() -> None:
    x = make_values(300_000, torch.float32, "smooth", 1)
    bound = Bound.absolute(1e-3)
    expected = encode(x, bound, effort="speed").tobytes()
    wrong: list[object] = []

    def work(effort: Literal["ratio", "speed"]) -> None:
        for _ in range(5):
            blob = encode(x, bound, effort="speed", threads=2)
            if blob.tobytes() != expected or not bound.holds(x, decode(blob, threads=2)):
                wrong.append(effort)

    workers = [threading.Thread(target=work, args=("speed",)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
