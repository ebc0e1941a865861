"""What a run is told about its checkpoints, and warnings that point at its own lines."""

import logging
import sys
import warnings

from elbowroom.store.checkpoint.sources import CheckpointWarning

_log = logging.getLogger("elbowroom")


def tell(said: str) -> None:
    """Log what is good to know; where the script has set up no logs, print it."""
    _log.info(said)
    if not _log.hasHandlers():
        print(f"elbowroom: {said}", file=sys.stderr, flush=True)


def warn(said: str) -> None:
    """Warn at the line of the user that led here."""
    level, frame = 1, sys._getframe()
    while frame is not None and _is_ours(str(frame.f_globals.get("__name__"))):
        level, frame = level + 1, frame.f_back
    warnings.warn(said, CheckpointWarning, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.startswith("elbowroom.") or module == "contextlib"
