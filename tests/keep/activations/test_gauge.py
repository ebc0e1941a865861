"""What the kernel is told about pages where memory is short."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import ctypes, sys
from pathlib import Path
from elbowroom.keep.activations.gauge import use_fewer_large_pages
told = use_fewer_large_pages(Path(sys.argv[1]))
print(told, ctypes.CDLL(None).prctl(42, 0, 0, 0, 0))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are told of by Linux")
@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("[always] madvise never", "True 1"),
        ("always [madvise] never", "False 0"),
        ("always madvise [never]", "False 0"),
        (None, "False 0"),
    ],
)
def test_large_pages_are_refused_where_they_are_for_anything(
    tmp_path: Path, setting: str | None, expected: str
) -> None:
    file = tmp_path / "enabled"
    if setting is not None:
        file.write_text(setting)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(file)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == expected
