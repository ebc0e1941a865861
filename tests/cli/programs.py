"""Running programs in processes of their own, as a shell would."""

import os
import subprocess
import sys
from pathlib import Path

import torch

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
ENVIRONMENT.pop("RANK", None)
RUN = [sys.executable, "-m", "elbowroom", "run"]


def run(
    folder: Path, *command: object, given: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        # What the tests' own import of elbowroom has set is not there for a plain script.
        env={k: v for k, v in ENVIRONMENT.items() if k != "THP_MEM_ALLOC_ENABLE"} | variables,
        input=given,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def weights(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)
