"""Real trainings, killed and started again, have the losses of one that nobody touched."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_killed_trainings_end_as_if_nothing_had_happened() -> None:
    """In a process of its own, which forks them: this one may have threads."""
    words = ["--kills", "6", "--rank-kills", "2", "--ranks", "2", "--seed", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.checkpoint.kills", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tolls = json.loads(done.stdout)
    assert (tolls["alone"]["kills"], tolls["ranks"]["kills"]) == (6, 2)
    assert tolls["alone"]["faults"] == tolls["ranks"]["faults"] == []
