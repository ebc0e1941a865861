"""Torch's allocator on the host: large tensors on page boundaries."""

import os
import subprocess
import sys

import pytest

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
