"""What a run is told about its checkpoints: warnings that point at its own lines."""

import sys
import warnings

from elbowroom.store.checkpoint.sources import CheckpointWarning


def warn(said: str) -> None:
    """Warn at the line of the user that led here."""
    level, frame = 1, sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("elbowroom."):
        level, frame = level + 1, frame.f_back
    warnings.warn(said, CheckpointWarning, stacklevel=level)
