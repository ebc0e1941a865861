"""Damaged blobs are refused or decoded; nothing else comes out, and memory stays bounded."""

import json
import random
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from elbowroom import Blob, decode
from elbowroom.errors import CorruptData, IncompatibleFormat
from tests.codec.mutations import blobs, mutated, repaired

MUTATIONS = 5000  # with and without repair, each


def outcome(data: bytes) -> str:
    """What decoding does; whatever else it raises goes through."""
    try:
        blob = Blob.frombytes(data)
    except IncompatibleFormat:
        return "another version"
    except CorruptData:
        return "refused header"
    try:
        y: Any = decode(blob, threads=1)
    except CorruptData as error:
        return "refused checksum" if "checksum" in str(error) else "refused chunk"
    assert tuple(y.shape) == tuple(blob.shape)
    assert y.dtype == blob.dtype
    return "decoded"


def outcomes(repair: bool, count: int) -> Counter[str]:
    rng = random.Random(int(repair))
    stock = blobs()
    found: Counter[str] = Counter()
    while found.total() < count:
        data = rng.choice(stock)
        damaged = mutated(data, rng, repair=repair)
        if damaged != data:
            found[outcome(damaged)] += 1
    return found


def test_unharmed_blobs_decode_and_need_no_repair() -> None:
    for data in blobs():
        assert outcome(data) == "decoded"
        assert repaired(data) == data


@pytest.mark.parametrize("repair", [False, True])
def test_damage_is_refused_or_decoded(repair: bool, isa: str) -> None:
    found = outcomes(repair, MUTATIONS)
    if repair:
        # Deep enough: a good part gets through to the chunks, and even through them.
        assert found["refused chunk"] > MUTATIONS // 10
        assert found["decoded"] > MUTATIONS // 10
        assert found["refused checksum"] == 0
    else:
        assert found["refused checksum"] > MUTATIONS // 10
        assert found["decoded"] == 0


def test_mutations_repeat() -> None:
    data = blobs()[0]
    first, second = (
        [mutated(data, rng, repair=True) for _ in range(50)]
        for rng in (random.Random(5), random.Random(5))
    )
    assert first == second


def test_memory_stays_bounded() -> None:
    """In a process of its own: what the system has given it at most, before and after."""
    code = (
        "import json, resource\n"
        "from tests.codec.test_mutations import blobs, outcome, outcomes\n"
        "for data in blobs():\n"
        "    outcome(data)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "found = outcomes(True, 1000) + outcomes(False, 300)\n"
        "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(json.dumps({'grown_kib': after - before, 'count': found.total()}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300
    )
    found = json.loads(done.stdout)
    assert found["count"] == 1300
    # One chunk's array of 16 MB and its workspace; never what a forged header claims.
    assert found["grown_kib"] < 64 * 1024
