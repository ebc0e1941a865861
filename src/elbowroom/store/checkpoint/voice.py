"""What a run is told about its checkpoints: warnings that point at its own lines."""

import sys
import warnings

from elbowroom.store.checkpoint.sources import CheckpointWarning


def warn(said: str) -> None:
    """Warn at the line of the user that led here."""
    level, frame = 1, sys._getframe()
    while frame is not None and _is_ours(str(frame.f_globals.get("__name__"))):
        level, frame = level + 1, frame.f_back
    warnings.warn(said, CheckpointWarning, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.startswith("elbowroom.") or module == "contextlib"
