"""Frames: against the same arithmetic in numpy, there and back, and whatever else is handed in."""

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from elbowroom import _native
from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.store.checkpoint.coding import (
    CODINGS,
    FRAME_BYTES,
    MOST_RATIO,
    decode_frame,
    encode_frame,
    frames_of,
    possible_codings,
)

Bytes = NDArray[np.uint8]
UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
FLOATS: dict[int, Any] = {4: np.float32, 8: np.float64}
KINDS = [(coding, item) for coding in CODINGS for item in UNSIGNED]
KINDS = [(coding, item) for coding, item in KINDS if coding != "scale" or item in FLOATS]


def reference_expected(coding: str, item: int, old: Bytes, factor: float) -> NDArray[Any]:
    before = old.view(UNSIGNED[item])
    if coding != "scale":
        return before
    with np.errstate(all="ignore"):
        numbers = old.view(FLOATS[item])
        product = (numbers * numbers.dtype.type(factor)).view(UNSIGNED[item])
    return np.where(np.isfinite(numbers), product, before)


def reference_planes(coding: str, item: int, new: Bytes, old: Bytes, factor: float) -> Bytes:
    kind = UNSIGNED[item]
    items, before = new.view(kind), reference_expected(coding, item, old, factor)
    if coding == "xor":
        items = items ^ before
    elif coding != "zstd":
        delta = items - before
        signs = (kind(0) - (delta >> kind(8 * item - 1))).astype(kind)
        items = (delta << kind(1)) ^ signs
    return np.ascontiguousarray(items.view(np.uint8).reshape(-1, item).T).reshape(-1)


def reference_items(coding: str, item: int, planes: Bytes, old: Bytes, factor: float) -> Bytes:
    kind = UNSIGNED[item]
    found = np.ascontiguousarray(planes.reshape(item, -1).T).reshape(-1).view(kind)
    before = reference_expected(coding, item, old, factor)
    if coding == "xor":
        found = found ^ before
    elif coding != "zstd":
        found = before + ((found >> kind(1)) ^ (kind(0) - (found & kind(1))).astype(kind))
    return found.astype(kind).view(np.uint8)


def reference_decode(coding: str, item: int, coded: bytes, old: Bytes) -> Bytes:
    factor, start = 1.0, 0
    if coding == "scale":
        (factor,), start = struct.unpack_from("<d", coded), 8
    lengths = struct.unpack_from(f"<{item}I", coded, start)
    start += 4 * item
    planes = []
    for length in lengths:
        piece = coded[start : start + length]
        raw = length == len(old) // item
        planes.append(piece if raw else zstandard.ZstdDecompressor().decompress(piece))
        start += length
    assert start == len(coded)
    return reference_items(coding, item, np.frombuffer(b"".join(planes), np.uint8), old, factor)


@contextmanager
def level_set(level: str) -> Iterator[None]:
    before = _native.isa()
    _native.set_isa(level)
    yield
    _native.set_isa(before)


def some_bytes(seed: int, nbytes: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def trained(seed: int, count: int) -> tuple[Bytes, Bytes]:
    """Numbers as a training leaves them: most of them near what they were."""
    random = np.random.default_rng(seed)
    old = random.standard_normal(count).astype(np.float32)
    old[random.random(count) < 0.01] = np.nan
    new = old + 1e-3 * random.standard_normal(count).astype(np.float32)
    return new.astype(np.float32).view(np.uint8), old.view(np.uint8)


def round_trip(coding: str, item: int, new: Bytes, old: Bytes) -> bytes:
    coded = encode_frame(coding, item, new, None if coding == "zstd" else old)
    out = old.copy()
    decode_frame(coding, item, coded, out)
    assert (out == new).all()
    return coded


kinds = st.sampled_from(KINDS)
counts = st.one_of(st.integers(0, 40), st.sampled_from([1023, 1024, 1025, 5001]))


@given(kind=kinds, count=counts, seed=st.integers(0, 1000), factor=st.floats(2**-20, 2**20))
def test_planes_are_those_of_the_reference(
    kind: tuple[str, int], count: int, seed: int, factor: float
) -> None:
    (coding, item), nbytes = kind, count * kind[1]
    # Addresses that no vector likes.
    new, old = (some_bytes(seed + i, nbytes + 3)[3:] for i in range(2))
    expected = reference_planes(coding, item, new.copy(), old.copy(), factor)
    number = CODINGS.index(coding)
    for level in _native.isa_levels():
        with level_set(level):
            planes = np.empty(nbytes + 1, np.uint8)[1:]
            _native.split_planes(
                *(number, item, factor, new.ctypes.data, old.ctypes.data),
                *(count, planes.ctypes.data),
            )
            assert (planes == expected).all()
            out = old.copy()
            places = [planes.ctypes.data + p * count for p in range(item)]
            _native.join_planes(number, item, factor, places, count, out.ctypes.data)
            assert (out == new).all()


@given(kind=kinds, count=counts, seed=st.integers(0, 1000), near=st.booleans())
@example(kind=("scale", 4), count=0, seed=0, near=True)
def test_frames_come_back_and_the_reference_reads_them(
    kind: tuple[str, int], count: int, seed: int, near: bool
) -> None:
    coding, item = kind
    new, old = (
        trained(seed, 2 * count) if near else (some_bytes(seed + i, 8 * count) for i in (0, 1))
    )
    new, old = new[: count * item], old[: count * item]
    coded = round_trip(coding, item, new, old)
    assert (reference_decode(coding, item, coded, old) == new).all()


@pytest.mark.parametrize(("coding", "item"), KINDS)
def test_whole_frames_come_back(coding: str, item: int) -> None:
    new, old = trained(1, FRAME_BYTES // 4)
    coded = round_trip(coding, item, new, old)
    assert len(coded) < 1.001 * len(new)


def test_frames_cover_all_bytes() -> None:
    for nbytes in (0, 1, FRAME_BYTES, FRAME_BYTES + 1, 3 * FRAME_BYTES - 1):
        frames = list(frames_of(nbytes))
        covered = [at for frame in frames for at in (frame.start, frame.stop)]
        assert covered[::2] == [0, *covered[1:-1:2]][: len(frames)]
        assert not nbytes or covered[-1] == nbytes
        assert all(frame.stop - frame.start <= FRAME_BYTES for frame in frames)


def test_what_no_coding_makes_smaller_is_kept_as_it_is() -> None:
    new, old = some_bytes(0, 40000), some_bytes(1, 40000)
    for coding, item in KINDS:
        head = 4 * item + (8 if coding == "scale" else 0)
        assert len(round_trip(coding, item, new, old)) == head + len(new)


def test_small_changes_take_few_bytes() -> None:
    new, old = trained(2, 1 << 18)
    sizes = {coding: len(round_trip(coding, 4, new, old)) for coding in CODINGS}
    assert sizes["subtract"] < sizes["xor"] < 0.95 * sizes["zstd"] < 0.95 * len(new)
    assert sizes["scale"] < 1.001 * sizes["subtract"]


@pytest.mark.parametrize("item", FLOATS)
@pytest.mark.parametrize("idle", [1.0, 0.6])
def test_scale_finds_what_only_decays(item: int, idle: float) -> None:
    random = np.random.default_rng(3)
    old = random.standard_normal((1 << 18) // item).astype(FLOATS[item])
    new = old.copy()
    for _ in range(10):
        new *= new.dtype.type(0.999)
    rest = random.random(len(new)) > idle  # gets gradients
    new[rest] = random.standard_normal(rest.sum())
    coded = {
        coding: len(round_trip(coding, item, new.view(np.uint8), old.view(np.uint8)))
        for coding in ("subtract", "scale")
    }
    assert coded["scale"] < (0.3 if idle == 1 else 0.85) * coded["subtract"]


def test_what_has_not_changed_takes_next_to_nothing() -> None:
    old = trained(4, FRAME_BYTES // 4)[1]
    for coding, item in KINDS:
        if coding != "zstd":
            coded = round_trip(coding, item, old, old)
            assert len(old) / MOST_RATIO < len(coded) < 400


def test_no_frame_is_smaller_than_a_reader_believes() -> None:
    zeros = np.zeros(FRAME_BYTES, np.uint8)
    assert all(len(round_trip(c, i, zeros, zeros)) * MOST_RATIO > FRAME_BYTES for c, i in KINDS)


def test_repeats_are_found_in_what_builds_on_nothing() -> None:
    text = np.frombuffer(b"".join(b"line %d of a table\n" % i for i in range(9000)), np.uint8)
    assert len(round_trip("zstd", 1, text, text)) < len(text) / 5


def test_codings_worth_trying() -> None:
    assert possible_codings(4, builds_on=False) == ("zstd",)
    for item in UNSIGNED:
        found = possible_codings(item, builds_on=True)
        assert set(found) <= {coding for coding, width in KINDS if width == item}
        assert len(found) == 3


def test_threads_code_at_once() -> None:
    new, old = trained(5, 50_000)
    expected, wrong = encode_frame("scale", 4, new, old), []

    def work() -> None:
        for _ in range(20):
            out = old.copy()
            decode_frame("scale", 4, encode_frame("scale", 4, new, old), out)
            if not (out == new).all() or encode_frame("scale", 4, new, old) != expected:
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_levels_write_the_same_bytes() -> None:
    new, old = trained(6, 10_001)
    for coding, item in KINDS:
        nbytes = len(new) // item * item
        coded = set()
        for level in _native.isa_levels():
            with level_set(level):
                coded.add(encode_frame(coding, item, new[:nbytes], old[:nbytes]))
        assert len(coded) == 1


@pytest.mark.parametrize(
    ("coding", "item", "nbytes", "old_nbytes"),
    [
        ("zip", 4, 8, 8),
        ("xor", 3, 9, 9),
        ("scale", 2, 8, 8),
        ("zstd", 4, 7, 7),
        ("xor", 4, 8, None),
        ("subtract", 4, 8, 12),
        ("zstd", 1, FRAME_BYTES + 1, None),
    ],
)
def test_requests_without_sense_are_refused(
    coding: str, item: int, nbytes: int, old_nbytes: int | None
) -> None:
    old = None if old_nbytes is None else np.zeros(old_nbytes, np.uint8)
    with pytest.raises(InvalidArgument):
        encode_frame(coding, item, np.zeros(nbytes, np.uint8), old)


def test_memory_that_cannot_be_written_is_refused() -> None:
    coded = encode_frame("zstd", 1, np.zeros(8, np.uint8), None)
    out = np.zeros(16, np.uint8)
    with pytest.raises(InvalidArgument):
        decode_frame("zstd", 1, coded, out[::2])
    out.flags.writeable = False
    with pytest.raises(InvalidArgument):
        decode_frame("zstd", 1, coded, out[:8])


def frame(lengths: list[int], planes: bytes = b"", factor: float | None = None) -> bytes:
    head = b"" if factor is None else struct.pack("<d", factor)
    return head + struct.pack(f"<{len(lengths)}I", *lengths) + planes


COMPRESSOR = zstandard.ZstdCompressor(level=1)
ZEROS = COMPRESSOR.compress(bytes(100))
LARGE = COMPRESSOR.compress(bytes(10**9 // 8))
SILENT = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(100))


@pytest.mark.parametrize(
    ("coding", "item", "coded"),
    [
        ("", 1, frame([100], bytes(100))),
        ("blob", 1, frame([100], bytes(100))),
        ("zstd", 3, frame([100], bytes(100))),
        ("zstd", 0, frame([100], bytes(100))),
        ("zstd", 8, frame([100], bytes(100))),  # 100 bytes are no whole items
        ("scale", 1, frame([100], bytes(100), 1.0)),
        ("zstd", 1, b""),
        ("zstd", 1, b"\0\0\0"),
        ("scale", 4, frame([25] * 4, bytes(100))),  # without a factor
        *[("scale", 4, frame([25] * 4, bytes(100), f)) for f in (0.0, -1.0, 1e300, 1e-300)],
        *[("scale", 4, frame([25] * 4, bytes(100), float(f))) for f in ("nan", "inf", "-inf")],
        ("zstd", 1, frame([100], bytes(99))),
        ("zstd", 1, frame([100], bytes(101))),
        ("zstd", 1, frame([101], bytes(101))),
        ("zstd", 1, frame([0])),
        ("zstd", 1, frame([2**32 - 1], bytes(100))),
        ("zstd", 4, frame([25, 25, 25, 24], bytes(100))),
        ("zstd", 4, frame([2**32 - 1, 101, 0, 0], bytes(100))),
        ("zstd", 1, frame([10], bytes(10))),
        ("zstd", 1, frame([len(ZEROS) - 1], ZEROS[:-1])),
        ("zstd", 1, frame([len(ZEROS) + 1], ZEROS + b"\0")),
        ("zstd", 1, frame([2 * len(ZEROS)], 2 * ZEROS)),
        ("zstd", 2, frame([len(ZEROS)] * 2, 2 * ZEROS)),  # of 100 items, not of 50
        ("zstd", 1, frame([99], LARGE[:99])),
        ("zstd", 1, frame([len(SILENT)], SILENT)),
    ],
)
def test_malformed_frames_are_refused(coding: str, item: int, coded: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_frame(coding, item, coded, np.zeros(100, np.uint8))


def decode_anything(coding: str, item: int, coded: bytes, nbytes: int) -> bool:
    """Whether it decodes; what lies around the target must not change in any case."""
    room = np.full(nbytes + 128, 0xA5, np.uint8)
    try:
        decode_frame(coding, item, coded, room[64 : 64 + nbytes])
    except CorruptData:
        return False
    finally:
        assert (room[:64] == 0xA5).all() and (room[64 + nbytes :] == 0xA5).all()
    return True


@given(kind=kinds, coded=st.binary(max_size=200), nbytes=st.integers(0, 100))
def test_any_bytes_are_decoded_or_refused(kind: tuple[str, int], coded: bytes, nbytes: int) -> None:
    decode_anything(*kind, coded, nbytes)


@settings(max_examples=300)
@given(
    kind=kinds,
    seed=st.integers(0, 50),
    places=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    cut=st.integers(-8, 8),
    items_more=st.integers(-2, 2),
)
def test_damaged_frames_are_decoded_or_refused(
    kind: tuple[str, int], seed: int, places: list[tuple[int, int]], cut: int, items_more: int
) -> None:
    coding, item = kind
    new, old = trained(seed, 600)
    coded = bytearray(encode_frame(coding, item, new, old))
    for place, value in places:
        # Mostly in the head, where it hurts most.
        coded[place % len(coded) if place % 3 else place % 40] = value
    coded = coded[:cut] if cut < 0 else coded + bytes(cut)
    decoded = decode_anything(coding, item, bytes(coded), len(new) + items_more * item)
    assert not (decoded and (cut or items_more))
