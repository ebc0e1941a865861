"""The checksum of everything stored (docs/format.md, "Checksum")."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elbowroom import _native


def checksum(data: bytes | memoryview | NDArray[Any]) -> int:
    """Return the checksum of some bytes."""
    view = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    return _native.checksum(view.ctypes.data, view.size)
