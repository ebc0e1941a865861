"""Digests of parts, compared with the package xxhash; hash trees and what they find."""

import sys
import threading
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import xxhash
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from elbowroom import _native
from elbowroom.errors import BackendUnavailable, InvalidArgument
from elbowroom.store.checkpoint.digests import (
    HASHES,
    LEAF_BYTES,
    HashTree,
    check_hash,
    digest_of,
    hash_parts,
)

RANDOM = np.random.default_rng(0).integers(0, 256, 3 << 20, dtype=np.uint8)


def expected_parts(data: NDArray[np.uint8], part_bytes: int) -> list[bytes]:
    raw = data.tobytes()
    return [
        xxhash.xxh3_128(raw[at : at + part_bytes]).digest() for at in range(0, len(raw), part_bytes)
    ]


def rows(digests: NDArray[np.uint8]) -> list[bytes]:
    return [row.tobytes() for row in digests]


def test_digests_of_all_short_lengths_are_those_of_xxhash(isa: str) -> None:
    for nbytes in range(2049):
        data = RANDOM[nbytes : 2 * nbytes]
        assert digest_of("xxh3-128", data) == xxhash.xxh3_128(data.tobytes()).digest(), nbytes


@given(start=st.integers(0, 100), nbytes=st.integers(0, 2_000_000))
def test_digests_of_long_inputs_are_those_of_xxhash(start: int, nbytes: int) -> None:
    data = RANDOM[start : start + nbytes]
    expected = xxhash.xxh3_128(data.tobytes()).digest()
    before = _native.isa()
    try:
        for level in _native.isa_levels():
            _native.set_isa(level)
            assert digest_of("xxh3-128", data) == expected
    finally:
        _native.set_isa(before)


@pytest.mark.parametrize("part_bytes", [1, 3, 32, 100, 1 << 14, 1 << 20, 1 << 40])
@pytest.mark.parametrize("threads", [1, 3])
def test_parts_have_the_digests_of_the_parts_alone(isa: str, part_bytes: int, threads: int) -> None:
    data = RANDOM[7 : 7 + min(40_000 * part_bytes, 1_500_001)]
    found = hash_parts("xxh3-128", data.data, part_bytes, threads)
    assert rows(found) == expected_parts(data, part_bytes)


def test_nothing_has_no_parts_but_a_digest() -> None:
    assert hash_parts("xxh3-128", memoryview(b""), 16).shape == (0, 16)
    assert digest_of("xxh3-128", b"") == xxhash.xxh3_128(b"").digest()


def test_any_buffer_is_taken_by_its_bytes() -> None:
    numbers = np.arange(1000, dtype=np.float32)
    expected = expected_parts(numbers.view(np.uint8), 64)
    for data in (numbers.data, numbers.tobytes(), bytearray(numbers.tobytes())):
        assert rows(hash_parts("xxh3-128", data, 64)) == expected


def test_threads_may_hash_at_once() -> None:
    expected, wrong = rows(hash_parts("xxh3-128", RANDOM.data, 4096)), []

    def work() -> None:
        if rows(hash_parts("xxh3-128", RANDOM.data, 4096, threads=2)) != expected:
            wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_parts_of_no_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        _native.hash_parts(0, 0, 0, 0, 1)


def test_blake3_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [blake3(b"ab").digest(), blake3(b"c").digest()]
    assert rows(hash_parts("blake3", b"abc", 2)) == expected
    monkeypatch.setitem(sys.modules, "blake3", None)
    with pytest.raises(BackendUnavailable, match="pip install blake3"):
        hash_parts("blake3", b"abc", 2)


def test_unknown_hashes_are_refused() -> None:
    assert [check_hash(name) for name in HASHES] == list(HASHES)
    with pytest.raises(InvalidArgument, match="got 'md5'"):
        check_hash("md5")


def reference_root(data: bytes, leaf_bytes: int, digest: Callable[[bytes], bytes]) -> str:
    level = [digest(data[at : at + leaf_bytes]) for at in range(0, len(data), leaf_bytes)]
    while len(level) > 1:
        pairs = [digest(a + b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + (level[-1:] if len(level) % 2 else [])
    return f"{len(data):x}-{level[0].hex() if level else ''}"


@pytest.mark.parametrize("name", HASHES)
@pytest.mark.parametrize("leaves", [0, 0.5, 1, 2, 3, 4.1, 7, 37.5])
def test_roots_are_hashes_of_hashes(name: str, leaves: float) -> None:
    data = RANDOM[: int(leaves * LEAF_BYTES)]
    tree = HashTree.of(data.data, name)
    digest = lambda part: digest_of(name, part)  # noqa: E731
    assert tree.root == reference_root(data.tobytes(), LEAF_BYTES, digest)


@pytest.mark.parametrize("name", HASHES)
def test_levels_are_half_as_long_as_those_below(name: str) -> None:
    levels = HashTree.of(RANDOM[: 23 * 64].data, name, 64).levels
    assert [len(level) for level in levels] == [23, 12, 6, 3, 2, 1]
    for below, above in pairwise(levels):
        for number, digest in enumerate(above):
            children = below[2 * number : 2 * number + 2]
            alone = children.tobytes() if len(children) == 1 else None
            assert digest.tobytes() == (alone or digest_of(name, children.tobytes()))


@given(
    nbytes=st.integers(1, 9000),
    places=st.sets(st.integers(0, 8999), max_size=5),
    leaf_bytes=st.sampled_from([1, 16, 100, 4096]),
)
def test_a_tree_finds_the_leaves_that_differ(
    nbytes: int, places: set[int], leaf_bytes: int
) -> None:
    data = RANDOM[:nbytes].copy()
    tree = HashTree.of(data.data, "xxh3-128", leaf_bytes)
    changed = sorted({place % nbytes for place in places})
    data[changed] ^= 1
    other = HashTree.of(data.data, "xxh3-128", leaf_bytes)
    assert tree.changed(other).tolist() == sorted({place // leaf_bytes for place in changed})
    assert (tree.root == other.root) == (not changed)


def test_trees_of_other_sizes_differ_everywhere() -> None:
    one, other = (HashTree.of(RANDOM[:n].data, "xxh3-128", 16) for n in (64, 65))
    assert one.changed(other).tolist() == [0, 1, 2, 3]
