"""What the kernel is told about pages where memory is short."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import ctypes, sys
from pathlib import Path
from elbowroom.keep.activations.gauge import use_fewer_large_pages
for name in sys.argv[1:]:
    told = use_fewer_large_pages(Path(name))
    print(told, ctypes.CDLL(None).prctl(42, 0, 0, 0, 0))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are told of by Linux")
def test_large_pages_are_refused_where_they_are_for_anything(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("none", "never", "asked", "always")]
    files[1].write_text("always madvise [never]")
    files[2].write_text("always [madvise] never")
    files[3].write_text("[always] madvise never")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, files)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "0"] * 3 + ["True", "1"]
