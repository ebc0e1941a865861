"""The seam to the kernels: how a result is cut into rounds, and the memory it takes meanwhile."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from elbowroom import Bound, _native, encode
from elbowroom.codec.backends import native
from elbowroom.codec.recipe import Codec, Dtype, Recipe, Rule

BLOCK, DENSE = (
    Recipe(
        codec=codec, dtype=Dtype.F32, rule=Rule.PLAIN, step=1.5, inverse=0.75, limit=1.0, columns=62
    ).pack()
    for codec in (Codec.BLOCK, Codec.DENSE)
)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[tuple[int, int]]]]:
    """Encode so many chunks, without spare room; return the chunks of all tasks of all rounds."""

    def run(recipe: bytes, x: np.ndarray, threads: int) -> list[list[tuple[int, int]]]:
        seen: list[list[tuple[int, int]]] = []

        def watched(packed: bytes, source: int, items: int, tasks: list[Any], *rest: int) -> Any:
            seen.append([(first, end) for _, _, first, end in tasks])
            return encode_segments(packed, source, items, tasks, *rest)

        encode_segments = _native.encode
        with monkeypatch.context() as patch:
            patch.setattr(native, "SPARE_BYTES", 0)
            patch.setattr(_native, "encode", watched)
            native.encode(recipe, x.ctypes.data, x.size, threads)
        return seen

    return run


def test_blocks_that_fit_take_one_round(rounds: Any) -> None:
    x = np.zeros(64 * 65536, np.float32)
    assert rounds(BLOCK, x, 1) == [[(0, 64)]]
    assert rounds(BLOCK, x, 3) == [[(0, 21), (21, 42), (42, 64)]]


@pytest.mark.parametrize("threads", [1, 2, 3, 100])
def test_dense_is_tried_on_a_part_first(threads: int, rounds: Any) -> None:
    length = _native.chunk_items(DENSE)
    found = rounds(DENSE, np.zeros(5 * length + 7, np.float32), threads)
    edges = [task for tasks in found for task in tasks]
    assert [first for first, _ in edges] == [0, *(end for _, end in edges[:-1])]
    assert edges[-1][1] == 6
    assert [len(tasks) for tasks in found] == [[1, 1], [2, 2], [3, 3], [6]][min(threads, 4) - 1]
    assert found[0][0] == (0, 1)


def test_what_has_outgrown_its_items_is_left(rounds: Any) -> None:
    length = _native.chunk_items(DENSE)
    x = np.random.default_rng(0).standard_normal(6 * length, np.float32) * np.float32(1e8)
    x[::2] = np.nan
    assert rounds(DENSE, x, 1) == [[(0, 1)], [(1, 2)], [(2, 3)]]


PEAK = """
import re, sys
import numpy as np
import elbowroom as er

def kilobytes(key):
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1])

bound = er.Bound.absolute(1e-3)
x = np.random.default_rng(0).standard_normal(15 << 20, np.float32)
x *= 1e6
x[::2] = np.nan
er.encode(x[: 3 << 20], bound, codec=sys.argv[1], threads=1)  # workspace, kept for later calls
before = kilobytes("VmRSS")
blob = er.encode(x, bound, codec=sys.argv[1], threads=1)
peak = 1024 * (kilobytes("VmHWM") - before)
assert blob.recipe.rule.name == "EXACT", blob  # so the lossy attempt has failed
assert peak <= 1.4 * x.nbytes, (peak / x.nbytes, blob)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("codec", ["block", "dense"])
def test_an_attempt_that_fails_takes_little_more_than_the_array(codec: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, codec], timeout=300, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()


def test_no_spare_room_changes_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal(5_000_000).astype(np.float32)
    x[1_000_000:3_000_000:3] = np.nan
    for bound in (Bound.absolute(1e-2), Bound.absolute(1e-6), Bound.lossless()):
        whole = encode(x, bound, threads=1)
        with monkeypatch.context() as patch:
            patch.setattr(native, "SPARE_BYTES", 0)
            assert encode(x, bound, threads=2) == whole
