"""decode: what it accepts, where it writes, and how damage is reported."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom import Blob, Bound, CorruptData, ElbowroomError, InvalidArgument, decode, encode
from tests.codec.arrays import make_values, same_bits

BOUND = Bound.absolute(1e-2)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, "u1")])
def test_bytes_of_any_kind_are_accepted(kind: Any) -> None:
    x = make_values(1000, torch.float32, "noisy", 1)
    blob = encode(x, BOUND)
    assert torch.equal(decode(kind(blob.tobytes())), decode(blob))


def test_bytes_at_odd_addresses() -> None:
    x = make_values(1000, torch.float64, "noisy", 1)
    for codec in ("block", "dense", "raw"):
        blob = encode(x, BOUND, codec=codec)
        data = b"?" + blob.tobytes()
        for backend in ("native", "reference"):
            assert torch.equal(decode(memoryview(data)[1:], backend=backend), decode(blob))


def test_a_tensor_goes_back_to_its_device() -> None:
    blob = encode(torch.randn(5), BOUND)
    blob.device = torch.device("meta")  # the only other device of every machine
    assert decode(blob).device.type == "meta"
    assert decode(blob.tobytes()).device.type == "cpu"


# --- out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["block", "dense", "raw"])
def test_out_is_filled_and_returned(codec: Any) -> None:
    x = torch.randn(4, 5, 6).permute(2, 0, 1)
    blob = encode(x, BOUND, codec=codec)
    out = torch.empty_like(x)
    version = out._version
    assert decode(blob, out=out) is out
    assert torch.equal(out, decode(blob))
    assert out._version > version
    array = x.numpy()
    blob = encode(array, BOUND, codec=codec)
    target = np.empty_like(array)
    assert decode(blob, out=target) is target
    assert np.array_equal(target, decode(blob))


def test_out_may_be_a_part_of_something() -> None:
    x = torch.randn(10, 3)
    whole = torch.full((30, 3), 7.0)
    decode(encode(x, Bound.lossless()), out=whole[10:20])
    assert torch.equal(whole[10:20], x)
    assert (whole[:10] == 7).all() and (whole[20:] == 7).all()


def test_autograd_notices_out() -> None:
    weight = torch.ones(3, requires_grad=True)
    saved = torch.randn(3)
    product = (weight * saved).sum()
    decode(encode(torch.randn(3), BOUND), out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_out_in_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.randn(5)
        assert torch.equal(decode(encode(x, Bound.lossless()), out=torch.empty(5)), x)


@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        (torch.zeros(3, 4, dtype=torch.float64), r"of torch.float32 and shape \[3, 4\], got torch"),
        (torch.zeros(4, 3), r"of torch.float32 and shape \[3, 4\], got torch.float32 and \[4, 3\]"),
        (torch.zeros(4, 3).T, r"the strides \[4, 1\] \(in items\), got \[1, 3\]: make it like"),
        (torch.zeros(1, 4).expand(3, 4), r"the strides \[4, 1\] \(in items\), got \[0, 1\]"),
        (torch.zeros(9).as_strided((3, 4), (1, 1)), r"the strides \[4, 1\] .* got \[1, 1\]"),
        (torch.zeros(3, 4, requires_grad=True), r"must not require a gradient"),
        (torch.nn.Parameter(torch.zeros(3, 4)), r"must not require a gradient, .* out.detach\(\)"),
        (torch.zeros(3, 4, device="meta"), r"out has no memory to decode into"),
        (torch._efficientzerotensor((3, 4)), r"out has no memory to decode into"),
        (torch.zeros(3, 4)._neg_view(), r"an ordinary tensor, got a negated or unaligned view"),
        (np.empty((3, 4), np.float32), r"out must be a dense torch tensor, got ndarray"),
        (torch.eye(3).to_sparse(), r"a dense torch tensor, got one of layout torch.sparse_coo"),
        ([], r"out must be a dense torch tensor, got list"),
    ],
)
def test_tensors_that_cannot_be_out(out: Any, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        decode(encode(torch.ones(3, 4), BOUND), out=out)
    if isinstance(out, torch.Tensor) and out.layout is torch.strided and not out.is_meta:
        assert not out.any()


def test_arrays_that_cannot_be_out() -> None:
    blob = encode(np.ones((3, 4), np.float32), BOUND)
    overlapping = np.lib.stride_tricks.as_strided(np.zeros(9, np.float32), (3, 4), (4, 4))
    read_only = np.zeros((3, 4), np.float32)
    read_only.flags.writeable = False
    for out, sentence in (
        (torch.zeros(3, 4), "out must be a numpy array, got Tensor"),
        (np.zeros((3, 4)), r"of float32 and shape \[3, 4\], got float64"),
        (np.zeros((3, 4), ">f4"), r"of float32 and shape \[3, 4\], got >f4"),
        (np.zeros((4, 3), np.float32).T, r"the strides \[4, 1\]"),
        (np.zeros((3, 8), np.float32)[:, ::2], r"the strides \[4, 1\]"),
        (np.zeros((3, 4), np.float32)[::-1], r"the strides \[4, 1\] \(in items\), got \[-4, 1\]"),
        (overlapping, r"the strides \[4, 1\] \(in items\), got \[1, 1\]"),
        (read_only, "must be writeable, but is read-only: pass a copy"),
        (np.broadcast_to(np.float32(0), (3, 4)), "must be writeable, but is read-only"),
        (np.zeros((3, 4), [("a", "f4"), ("b", "i2")])["a"], "must be aligned"),
        (np.ma.masked_array(read_only.copy(), mask=True), "a numpy array, got MaskedArray"),
    ):
        with pytest.raises(InvalidArgument, match=sentence):
            decode(blob, out=out)  # type: ignore[arg-type]
        assert not np.asarray(out).any()


def test_tensors_without_storage_cannot_be_out() -> None:
    blob = encode(torch.randn(3, 4), BOUND)

    def mapped(out: torch.Tensor) -> torch.Tensor:
        with pytest.raises(InvalidArgument, match="out has no memory to decode into: pass a"):
            decode(blob, out=out)
        return out

    torch.func.vmap(mapped)(torch.zeros(2, 3, 4))
    freed = torch.empty(3, 4)
    freed.untyped_storage().resize_(0)
    mapped(freed)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(("start", "nbytes"), [(0, 399), (0, 40), (25, 499)])
def test_out_that_reaches_beyond_its_storage(start: int, nbytes: int, backend: Any) -> None:
    blob = encode(torch.randn(10, 10), Bound.lossless(), codec="raw")
    storage = torch.full((200,), 7.0)
    out = storage[start : start + 100].view(10, 10)
    storage.untyped_storage().resize_(nbytes)
    with pytest.raises(InvalidArgument, match=f"out must lie within its storage.* of {nbytes}: it"):
        decode(blob, out=out, backend=backend)
    assert (storage[: nbytes // 4] == 7).all()
    storage.untyped_storage().resize_(800)
    assert decode(blob, out=out, backend=backend) is out


def test_options_that_are_refused() -> None:
    blob = encode(torch.ones(3), BOUND)
    with pytest.raises(InvalidArgument, match="threads must be a positive integer"):
        decode(blob, threads=0)
    with pytest.raises(InvalidArgument, match="a backend is 'native' or 'reference'"):
        decode(blob, backend="gpu")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="a blob's bytes were expected, got int"):
        decode(3)


# --- damage ------------------------------------------------------------------------------------


def damaged(blob: Blob, at: int) -> Blob:
    data = bytearray(blob.tobytes())
    data[blob.nbytes - blob.payload_nbytes + at] ^= 4
    return Blob.frombytes(data)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_the_damaged_chunk_is_named(backend: Any) -> None:
    x = make_values(70_000, torch.float32, "constant", 1)
    blob = encode(x, BOUND, codec="block")
    first = int(blob.directory[0, 0])
    for at, chunk in ((0, 0), (first - 1, 0), (first, 1), (blob.payload_nbytes - 1, 1)):
        with pytest.raises(CorruptData, match=f"damaged in chunk {chunk} of 2: its checksum"):
            decode(damaged(blob, at), backend=backend)


@pytest.mark.parametrize("threads", [1, 4])
def test_the_first_of_several_is_named(threads: int) -> None:
    x = make_values(300_000, torch.float32, "noisy", 1)
    blob = encode(x, BOUND, codec="block")
    starts = np.cumsum(blob.directory[:, 0]).tolist()
    with pytest.raises(CorruptData, match="in chunk 2 of 5"):
        decode(damaged(damaged(blob, starts[3]), starts[1]), threads=threads)


@settings(max_examples=150)
@given(st.data())
@pytest.mark.parametrize("codec", ["block", "dense", "raw"])
def test_forged_payloads_fail_or_decode_but_nothing_else(codec: Any, data: st.DataObject) -> None:
    """With checksums that fit, a payload may decode to anything or fail: never crash."""
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.int16, torch.bool]))
    x = make_values(data.draw(st.integers(1, 400)), dtype, "noisy", 3)
    blob = encode(x, Bound.absolute(1e-2), codec=codec)
    payload = np.concatenate(blob.segments).copy()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, payload.size - 1))
        payload[at] = data.draw(st.integers(0, 255))
    from elbowroom.codec.checksum import checksum

    blob._segments = (blob._segments[0]._replace(data=payload),)
    blob._directory[0, 1] = checksum(payload)
    results = []
    for backend in ("native", "reference"):
        try:
            results.append(decode(blob, backend=backend))
        except ElbowroomError as error:
            assert "chunk 0" in str(error)
            results.append(None)
    if results[0] is not None and results[1] is not None:
        assert same_bits(results[0], results[1])
    else:
        assert results == [None, None]


# --- processes ---------------------------------------------------------------------------------

FORKED = """
import os, sys, torch
import elbowroom as er
x = torch.randn(600_000)
bound = er.Bound.absolute(1e-3)
blob = er.encode(x, bound, threads=2)
expected = er.decode(blob, threads=2)
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        again = er.decode(er.encode(x, bound, threads=2), threads=2)
        os._exit(0 if torch.equal(again, expected) else 1)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert torch.equal(er.decode(blob, threads=2), expected)
sys.exit(max(codes))
"""


def test_children_of_a_fork_can_use_it() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], timeout=120, check=False)
    assert done.returncode == 0


PEAK = """
import re, sys, torch
import elbowroom as er
kilobytes = lambda key: int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1])
x = torch.empty(64 << 20).normal_()
er.decode(er.encode(x[:1 << 20], er.Bound.absolute(1e-2), codec=sys.argv[1]))
before = kilobytes("VmRSS")
blob = er.encode(x, er.Bound.absolute(1e-2), codec=sys.argv[1], threads=2)
peak, after = (1024 * (kilobytes(key) - before) for key in ("VmHWM", "VmRSS"))
workspace = 2 * 20_000_000  # of two threads, whatever the array; kept for later calls
assert peak <= blob.nbytes + 0.05 * x.nbytes + workspace, (peak, blob.nbytes)
assert after <= 1.02 * blob.nbytes + workspace, (after, blob.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("codec", ["block", "dense"])
def test_memory_peaks_at_array_and_blob(codec: str) -> None:
    done = subprocess.run([sys.executable, "-c", PEAK, codec], timeout=300, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("codec", ["block", "dense"])
def test_a_target_inside_the_blob_is_refused(codec: Any) -> None:
    x = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    x[::50] = np.nan
    stored = encode(x, Bound.absolute(1e-2), codec=codec).tobytes()
    buffer = np.zeros(x.nbytes + len(stored) + 4096, np.uint8)
    buffer[: len(stored)] = np.frombuffer(stored, np.uint8)
    blob = Blob.frombytes(buffer[: len(stored)])
    with pytest.raises(InvalidArgument, match="memory of the blob"):
        decode(blob, out=buffer[: x.nbytes].view(np.float32))


def test_no_number_of_threads_leaves_work_undone() -> None:
    x = np.random.default_rng(1).normal(size=300_000).astype(np.float32)
    blob = encode(x, Bound.absolute(1e-3), codec="block")
    expected = decode(blob)
    for threads in (2**30, 2**31, 2**40):
        assert np.array_equal(decode(blob, threads=threads), expected)
