"""The blob as bytes: round trips, what frombytes refuses, and that forged headers are harmless."""

import copy
import io
import mmap
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom import Blob, Bound, CorruptData, IncompatibleFormat, decode, encode
from elbowroom.codec.blob import header_nbytes, largest_nbytes, restore
from elbowroom.codec.bound import Array
from elbowroom.codec.checksum import checksum
from tests.codec.arrays import arrays, bounds, make_values, same_bits

BOUND = Bound.absolute(1e-2)

# Offsets of docs/format.md.
VERSION, KIND, NDIM, MODE, FLAGS, RESERVED, CHUNKS, VALUE, PAYLOAD, RECIPE, SHAPE = (
    *(4, 6, 7, 8, 9, 10, 12, 16, 24, 32, 96),
)


def sample_blob() -> Blob:
    return encode(make_values(1200, torch.float32, "noisy", 1).reshape(30, 40), BOUND)


def forged(blob: Blob, at: int, layout: str, *values: Any) -> bytes:
    """The blob's bytes with other values in the header, and a header checksum that fits them."""
    data = bytearray(blob.tobytes())
    struct.pack_into("<" + layout, data, at, *values)
    ndim, chunks = data[NDIM], struct.unpack_from("<I", data, CHUNKS)[0]
    closing = header_nbytes(ndim, chunks) - 8
    if closing + 4 <= len(data):
        struct.pack_into("<I", data, closing, checksum(bytes(data[:closing])))
    return bytes(data)


# --- there and back ----------------------------------------------------------------------------


@settings(max_examples=150)
@given(x=arrays(), bound=bounds())
def test_bytes_are_the_blob(x: Array, bound: Bound) -> None:
    blob = encode(x, bound)
    data = blob.tobytes()
    again = Blob.frombytes(data)
    assert len(data) == blob.nbytes == again.nbytes
    assert again == blob
    assert again.tobytes() == data
    for name in ("bound", "kind", "dtype", "codec", "axis_order", "recipe", "raw_nbytes", "ratio"):
        assert getattr(again, name) == getattr(blob, name)
    assert tuple(again.shape) == tuple(blob.shape)
    assert again.strides == blob.strides
    y = decode(again)
    assert same_bits(y, decode(blob))
    assert y.shape == decode(blob).shape


def test_what_a_blob_says_of_itself() -> None:
    x = torch.zeros(100, 50)
    blob = encode(x, Bound.absolute(0.5, keep_sign=True))
    assert blob.raw_nbytes == x.nbytes == 20_000
    assert blob.ratio == 20_000 / blob.nbytes
    assert (blob.kind, blob.codec, blob.dtype) == ("torch", "block", torch.float32)
    assert repr(blob) == (
        "<Blob block of torch float32 [100, 50], Bound.absolute(0.5, keep_sign=True), "
        f"20,000 to {blob.nbytes} bytes>"
    )
    assert encode(x.numpy(), BOUND).dtype == np.dtype(np.float32)
    assert encode(torch.zeros(0), BOUND).ratio == 0


def test_equality() -> None:
    x = make_values(300_000, torch.float32, "noisy", 1)
    blob = encode(x, BOUND, codec="block", threads=1)
    assert blob == encode(x, BOUND, codec="block", threads=3)
    assert blob == encode(x.clone(), BOUND, codec="block")
    assert blob != encode(x, BOUND, codec="dense")
    assert blob != encode(x + 1, BOUND, codec="block")
    assert blob != encode(x.numpy(), BOUND, codec="block")
    assert blob != "blob"


def test_the_payload_is_a_view_of_the_buffer() -> None:
    data = bytearray(sample_blob().tobytes())
    blob = Blob.frombytes(data)
    assert np.shares_memory(blob.segments[0], np.frombuffer(data, np.uint8))
    data[-1] ^= 1
    with pytest.raises(CorruptData, match="chunk 0"):
        decode(blob)


def test_the_directory_is_not() -> None:
    data = bytearray(sample_blob().tobytes())
    blob = Blob.frombytes(data)
    start = blob.nbytes - blob.payload_nbytes
    data[:start] = bytes(start)
    decode(blob)
    with pytest.raises(ValueError, match="read-only"):
        blob.directory[0, 0] = 10**9


def test_files_and_maps(tmp_path: Path) -> None:
    x = make_values(300_000, torch.float32, "noisy", 1)
    blob = encode(x, BOUND, codec="block", threads=3)
    path = tmp_path / "x.er"
    with path.open("wb", buffering=0) as file:
        assert blob.write(file) == blob.nbytes
    assert path.read_bytes() == blob.tobytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        again = Blob.frombytes(view)
        assert torch.equal(decode(again), decode(blob))
        del again
    memory = io.BytesIO()
    blob.write(memory)
    assert memory.getvalue() == blob.tobytes()


def test_files_that_write_a_little_at_a_time() -> None:
    blob = sample_blob()
    written = bytearray()

    class Slow:
        def write(self, data: memoryview) -> int:
            written.extend(data[:100])
            return min(len(data), 100)

    blob.write(Slow())
    assert written == blob.tobytes()


def test_sizes_of_headers() -> None:
    for shape in ((), (3,), (2, 2), (1,) * 7, (1,) * 8, (1,) * 32):
        x = torch.zeros(shape)
        blob = encode(x, BOUND, codec="raw")
        assert blob.nbytes == largest_nbytes(x.ndim, x.numel(), 4)
        assert header_nbytes(x.ndim, 1) % 8 == 0


# --- copies and pickles ------------------------------------------------------------------------


def blobs() -> list[Blob]:
    x = make_values(300_000, torch.float32, "noisy", 1)
    several = encode(x.reshape(500, 600).T, BOUND, codec="block", threads=3)
    several.device = torch.device("meta")
    data = bytearray(several.tobytes())
    return [several, Blob.frombytes(data), encode(np.zeros(0), BOUND), encode(x[0], BOUND)]


def through_pickle(blob: Blob) -> Blob:
    return pickle.loads(pickle.dumps(blob))


def through_torch(blob: Blob) -> Blob:
    file = io.BytesIO()
    torch.save({"blob": blob}, file)
    file.seek(0)
    with torch.serialization.safe_globals([restore]):
        return torch.load(file, weights_only=True)["blob"]


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, through_pickle, through_torch], ids=lambda f: f.__name__
)
def test_duplicates_are_the_same(duplicate: Any) -> None:
    for blob in blobs():
        again = duplicate(blob)
        assert again == blob and again is not blob
        assert again.device == blob.device
        assert again.tobytes() == blob.tobytes()


def test_deep_copies_have_memory_of_their_own() -> None:
    x = make_values(20_000, torch.float32, "smooth", 1)
    data = bytearray(encode(x, BOUND).tobytes())
    blob = Blob.frombytes(data)
    first, second = copy.deepcopy({"kept": [blob, blob]})["kept"]
    assert first is second
    expected = decode(blob)
    data[200:] = bytes(len(data) - 200)
    assert torch.equal(decode(first), expected)
    with pytest.raises(CorruptData):
        decode(copy.copy(blob))


def test_copies_are_as_good_to_be_like() -> None:
    x = make_values(20_000, torch.float32, "smooth", 1)
    blob = encode(x, BOUND)
    assert copy.deepcopy(blob)._exponent == copy.copy(blob)._exponent == blob._exponent is not None


def test_a_pickle_holds_bytes_that_are_checked() -> None:
    blob = sample_blob()
    function, (data, device) = blob.__reduce__()
    assert function is restore and data == blob.tobytes() and device is None
    damaged = pickle.dumps(blob).replace(b"ELBR", b"ELBX")
    with pytest.raises(CorruptData, match="not a blob: magic"):
        pickle.loads(damaged)


def test_torch_does_not_load_blobs_unasked() -> None:
    file = io.BytesIO()
    torch.save(sample_blob(), file)
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="restore"):
        torch.load(file, weights_only=True)


def test_bounds_are_checked_after_a_pickle() -> None:
    bound = Bound.range_relative(1e-3, keep_sign=True)
    assert pickle.loads(pickle.dumps(bound)) == copy.deepcopy(bound) == bound
    assert bound.__reduce__() == (Bound, (bound.mode, 1e-3, True))


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"E", b"ELB", b"PK\3\4" * 50, bytes(200), np.zeros(0, "u1")])
def test_what_is_no_blob_at_all(data: Any) -> None:
    with pytest.raises(CorruptData, match="not a blob: magic: b'ELBR' was expected, found b'"):
        Blob.frombytes(data)


def test_unknown_versions() -> None:
    for version in (0, 2, 65535):
        data = forged(sample_blob(), VERSION, "H", version)
        with pytest.raises(IncompatibleFormat, match=f"version 1, found {version}: use the rele"):
            Blob.frombytes(data)
        with pytest.raises(IncompatibleFormat):
            Blob.frombytes(data[:6])


def test_every_truncation_is_found() -> None:
    data = sample_blob().tobytes()
    for length in [*range(4, 200), *range(200, len(data), 37), len(data) - 1]:
        with pytest.raises(CorruptData, match="cut off"):
            Blob.frombytes(data[:length])


def test_what_follows_is_found() -> None:
    data = sample_blob().tobytes()
    for more in (b"\0", data):
        with pytest.raises(CorruptData, match="cut off or followed by something else"):
            Blob.frombytes(data + more)


def test_every_flipped_bit_of_the_header_is_found() -> None:
    blob = sample_blob()
    data = blob.tobytes()
    for bit in range(8 * (blob.nbytes - blob.payload_nbytes)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptData, IncompatibleFormat)):
            Blob.frombytes(flipped)


def test_every_flipped_byte_of_the_payload_is_found() -> None:
    blob = sample_blob()
    data = blob.tobytes()
    for at in range(blob.nbytes - blob.payload_nbytes, blob.nbytes):
        flipped = bytearray(data)
        flipped[at] ^= 16
        with pytest.raises(CorruptData, match="chunk 0 of 1: its checksum does not match"):
            decode(flipped)


def test_spliced_blobs_are_found() -> None:
    one = encode(make_values(1200, torch.float32, "noisy", 1), BOUND)
    two = encode(make_values(1200, torch.float32, "noisy", 2), BOUND)
    start = header_nbytes(1, 1)
    head, tail = one.tobytes()[:start], two.tobytes()[start:]
    fitted = (tail + bytes(one.payload_nbytes))[: one.payload_nbytes]
    with pytest.raises(CorruptData, match="chunk 0"):
        decode(head + fitted)


@pytest.mark.parametrize(
    ("at", "layout", "values", "sentence"),
    [
        (KIND, "B", [3], r"kind: 3 is not known"),
        (NDIM, "B", [33], r"ndim: 33, expected at most 32"),
        (MODE, "B", [4], r"bound mode: 4 is not known"),
        (MODE, "B", [0], r"bound value: 0.01 in the mode lossless"),
        (MODE, "B", [3], r"rule: plain with Bound.pointwise_relative\(0.01\)"),
        (FLAGS, "B", [2], r"bound flags: 0x2 is not known"),
        (FLAGS, "B", [1], r"rule: plain with Bound.absolute\(0.01, keep_sign=True\)"),
        (RESERVED, "H", [1], r"reserved: expected zeros"),
        (CHUNKS, "I", [0], r"reserved: expected zeros"),
        (CHUNKS, "I", [2**32 - 1], r"cut off: chunks: header of"),
        (VALUE, "d", [-1.0], r"bound value: a bound must be finite and positive"),
        (VALUE, "d", [float("nan")], r"bound value: a bound must be finite and positive"),
        (VALUE, "d", [0.0], r"bound value: 0.0 in the mode absolute"),
        (VALUE, "d", [1e-3], r"limit: .* with Bound.absolute\(0.001\)"),
        (PAYLOAD, "Q", [7], r"payload bytes: 7, the directory has"),
        (PAYLOAD, "Q", [2**64 - 1], r"payload bytes: 18446744073709551615, the directory has"),
        (RECIPE, "B", [3], r"recipe: codec: 3 is not known"),
        (RECIPE + 1, "B", [0], r"recipe: dtype: 0 is not known"),
        (RECIPE + 1, "B", [9], r"recipe: rule: plain on i32 items"),
        (RECIPE + 2, "B", [5], r"recipe: rule: 5 is not known"),
        (RECIPE + 8, "d", [float("inf")], r"recipe: step: inf is not a positive number"),
        (RECIPE + 60, "B", [1], r"recipe: reserved: expected zeros"),
        (SHAPE, "Q", [3000], r"chunks: 1, the shape needs 2"),
        (SHAPE, "Q", [2**64 - 1], r"shape: \[18446744073709551615, 40\] is beyond any memory"),
        (SHAPE, "QQ", [0, 2**63], r"shape: \[0, 9223372036854775808\] is beyond any memory"),
        (SHAPE, "QQ", [2**40, 4], r"chunks: 1, the shape needs 67108864"),
        (SHAPE, "QQ", [0, 4], r"chunks: 1, the shape needs 0"),
        (SHAPE + 16, "BB", [0, 0], r"axis order: \[0, 0\]"),
        (SHAPE + 16, "BB", [1, 2], r"axis order: \[1, 2\]"),
        (SHAPE + 18, "B", [1], r"padding: expected zeros"),
        (SHAPE + 24, "I", [3], r"directory: chunk 0: 3 bytes"),
        (SHAPE + 24, "I", [2**32 - 1], r"payload bytes: .*, the directory has 4294967295"),
        (SHAPE + 36, "I", [1], r"reserved: expected zeros"),
    ],
)
def test_forged_headers(at: int, layout: str, values: list[Any], sentence: str) -> None:
    data = forged(sample_blob(), at, layout, *values)
    with pytest.raises(CorruptData, match=sentence):
        Blob.frombytes(data)


def test_numpy_has_no_bfloat16() -> None:
    blob = encode(torch.zeros(50, dtype=torch.bfloat16), BOUND)
    with pytest.raises(CorruptData, match="kind: numpy array of BF16"):
        Blob.frombytes(forged(blob, KIND, "B", 2))


def test_raw_chunks_have_one_size() -> None:
    blob = encode(torch.arange(50), BOUND, codec="raw")
    with pytest.raises(CorruptData, match="directory: chunk 0: 400 bytes"):
        Blob.frombytes(forged(blob, SHAPE, "Q", 51))


@settings(max_examples=300)
@given(st.data())
def test_forged_headers_never_do_anything_else(data: st.DataObject) -> None:
    """Any number in any field, with a checksum that fits: decoded or refused, in little memory."""
    blob = sample_blob()
    fields = ["B", "H", "I", "Q"]
    layout = data.draw(st.sampled_from(fields))
    size = struct.calcsize(layout)
    at = data.draw(st.integers(4, blob.nbytes - blob.payload_nbytes - 8 - size))
    edges = [0, 1, 2, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]
    value = data.draw(st.one_of(st.sampled_from(edges), st.integers(0, 2**64 - 1))) % 256**size
    tracemalloc.start()
    try:
        decode(forged(blob, at, layout, value))
    except (CorruptData, IncompatibleFormat):
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 3_000_000


def test_claims_of_size_need_bytes_to_back_them() -> None:
    """Each of a thousand chunks must be there, however small, before memory is asked for."""
    blob = encode(torch.zeros(65536 * 4), BOUND, codec="block")
    decode(blob.tobytes())
    grown = forged(blob, SHAPE, "Q", 65536 * 1000)
    with pytest.raises(CorruptData, match="chunks: 4, the shape needs 1000"):
        Blob.frombytes(grown)
