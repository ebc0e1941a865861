"""Buffers: what a blob can be read from, and what it says of everything else."""

import array
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elbowroom import Blob, Bound, InvalidArgument, encode
from elbowroom.codec.buffers import LASTING_BYTES, Reserve, bytes_of

DATA = encode(np.arange(10), Bound.lossless()).tobytes()


def test_everything_that_holds_bytes_is_read() -> None:
    with mmap.mmap(-1, len(DATA)) as memory:
        memory.write(DATA)
        words = array.array("Q", DATA)
        for buffer in (DATA, bytearray(DATA), memoryview(DATA), words, memory):
            assert bytes_of(buffer).tobytes() == DATA
    assert bytes_of(np.frombuffer(DATA, np.uint8).reshape(2, -1)).tobytes() == DATA
    assert bytes_of(b"").size == 0


def test_memory_that_is_not_there_is_no_matter_of_files() -> None:
    for nbytes in (LASTING_BYTES - 1, LASTING_BYTES):
        assert Reserve(nbytes).keep(5).size == 5
    with pytest.raises(MemoryError, match="nable to allocate"):
        Reserve(1 << 60)


@pytest.mark.parametrize("buffer", [3, None, [1, 2], torch.zeros(9)])
def test_what_is_no_buffer(buffer: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"a blob's bytes were expected, got .*: pass bytes"):
        Blob.frombytes(buffer)


@pytest.mark.parametrize("path", ["x.er", Path("x.er")])
def test_a_name_is_not_what_the_file_holds(path: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"pass what the file holds, .*read_bytes\(\)"):
        Blob.frombytes(path)


def test_buffers_with_gaps() -> None:
    with pytest.raises(InvalidArgument, match="must lie one after another"):
        Blob.frombytes(np.zeros(400, np.uint8)[::2])
