"""What a measurement was made on, for the record that goes with it."""

import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path

import numpy as np

from elbowroom import __version__, _native


def describe() -> dict[str, str | int]:
    """Return processor, cores, versions and the time of the measurement."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        "isa": _native.isa(),
        "elbowroom": __version__,
        "torch": version("torch"),  # which takes a second to import
        "numpy": np.__version__,
        "python": platform.python_version(),
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
