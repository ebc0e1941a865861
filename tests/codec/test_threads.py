"""Threads: how many a call takes, and many calls at once."""

import threading
from typing import Literal

import pytest
import torch

from elbowroom import Bound, InvalidArgument, decode, encode
from tests.codec.arrays import make_values


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
