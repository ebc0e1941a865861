"""Memory on the host: large tensors on page boundaries, and used again once free."""

import os
import subprocess
import sys

import pytest

from elbowroom import host

PLACES = """
import sys, torch, elbowroom
print([torch.empty(1 << 20).data_ptr() % 4096 for _ in range(8)])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="torch does so on Linux only")
@pytest.mark.parametrize(("given", "is_aligned"), [(None, True), ("0", False)])
def test_large_tensors_lie_on_pages_unless_told_otherwise(
    given: str | None, is_aligned: bool
) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "THP_MEM_ALLOC_ENABLE"}
    if given is not None:
        environment["THP_MEM_ALLOC_ENABLE"] = given
    found = subprocess.run(
        [sys.executable, "-c", PLACES], env=environment, capture_output=True, text=True, check=True
    )
    places = [int(word) for word in found.stdout.strip("[]\n").split(",")]
    assert (places == [0] * 8) == is_aligned


REUSE = """
import resource, sys, torch, elbowroom
from elbowroom.host import recycle_memory
told = recycle_memory() if sys.argv[1] == "yes" else None
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step():
    # 48 MB: more than what glibc takes from its heap by default.
    return [torch.ones(12 << 20).sum() for _ in range(16)]
step()
before = faults()
step()
print(told, faults() - before)
"""


def _faults(recycled: str, **more: str) -> tuple[str, int]:
    ours = ("MALLOC_", "GLIBC", "THP_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    found = subprocess.run(
        [sys.executable, "-c", REUSE, recycled],
        env=environment | more,
        capture_output=True,
        text=True,
        check=True,
    )
    told, count = found.stdout.split()
    return told, int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is told so on Linux only")
def test_memory_of_large_tensors_is_used_again() -> None:
    told, few = _faults("yes")
    _, many = _faults("no")
    assert told == "True"
    # A page of 2 MiB, or 512 smaller ones, each.
    assert few < 50
    assert many > 16 * 20


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is told so on Linux only")
@pytest.mark.parametrize(
    "chosen",
    [{"MALLOC_MMAP_THRESHOLD_": "1048576"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"}],
)
def test_what_the_user_chose_stays(chosen: dict[str, str]) -> None:
    told, many = _faults("yes", **chosen)
    assert told == "False"
    assert many > 16 * 20


def test_free_memory_is_that_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < host.available_bytes() < 1 << 50
    monkeypatch.setattr(host, "left_bytes", lambda: 12345)
    assert host.available_bytes() == 12345


class Machine:
    """A heap of which some is holes."""

    def __init__(self, resident: int = 0) -> None:
        self.resident, self.trims = resident, 0

    def trim(self) -> None:
        self.trims += 1
        self.resident = 0


def test_a_loop_that_uses_its_holes_again_is_trimmed_once() -> None:
    machine = Machine(resident=500)
    trimmer = host.Trimmer(100, lambda: machine.resident, machine.trim)
    for _ in range(50):
        trimmer.passed(60)
        machine.resident = 80  # what a step has at once
    assert machine.trims == 1


def test_a_loop_that_grows_is_trimmed_again_and_again() -> None:
    machine = Machine()
    trimmer = host.Trimmer(100, lambda: machine.resident, machine.trim)
    most = 0
    for _ in range(100):
        machine.resident += 20
        trimmer.passed(100)
        most = max(most, machine.resident)
    assert machine.trims > 10
    assert most <= 100


def test_what_is_small_is_not_even_looked_at() -> None:
    machine = Machine()
    trimmer = host.Trimmer(1000, lambda: machine.resident, machine.trim)
    for _ in range(9):
        trimmer.passed(100)
    assert machine.trims == 0
