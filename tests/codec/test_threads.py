"""Threads: how many a call takes, and many calls at once."""

import subprocess
import sys
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
    assert len(encode(x[:60_000], Bound.absolute(1), codec="block").segments) == 1
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


HELPERS = """
import os, torch, elbowroom as er
torch.set_num_threads(2)
x = torch.linspace(0, 1, 1 << 20)
x.exp()
def threads():
    return len(os.listdir("/proc/self/task"))
found = [threads()]
blobs = []
for count in (2, 4):
    blobs.append(er.encode(x, er.Bound.absolute(1e-3), codec="block", threads=count))
    found.append(threads())
child = os.fork()
if child == 0:
    # Torch's threads are not here, and torch would wait for them: ours are started anew.
    one, other = (er.decode(blob, threads=2).numpy().tobytes() for blob in blobs)
    os._exit(0 if one == other else 1)
print(*found, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_the_helpers_are_those_of_torch_as_long_as_they_are_enough() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", HELPERS], capture_output=True, text=True, check=True, timeout=120
    )
    before, same, more, child = map(int, ran.stdout.split())
    assert same == before
    assert more > before
    assert child == 0


def test_two_threads_share_an_array_of_a_megabyte() -> None:
    x = torch.randn(4, 256, 14, 14, generator=torch.Generator().manual_seed(0))
    bound = Bound.absolute(0.25)
    whole = encode(x, bound, codec="dense", effort="ratio", threads=2)
    shared = encode(x, bound, codec="dense", effort="balanced", threads=2)
    assert (len(whole.segments), len(shared.segments)) == (1, 2)
    # The same chunks whoever works on them, for one percent of the bytes.
    alone = encode(x, bound, codec="dense", effort="balanced", threads=1)
    assert shared.tobytes() == alone.tobytes()
    assert shared.nbytes < 1.01 * whole.nbytes
