"""Arrays that a file must hold, whatever container they lie in: an archive is packed in many ways.

What counts is every value in the type that the catalogue names. Whole numbers must be the same;
floating-point ones may be stored wider, since readers round them to that type anyway.
"""

import hashlib
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Array:
    """One array of a file, as it must be."""

    name: str  # in an archive of arrays; empty for a file of one array
    dtype: str
    shape: tuple[int, ...]
    sha256: str  # of its values in that type, little-endian, row by row

    def __str__(self) -> str:
        size = " x ".join(map(str, self.shape))
        return f"{self.name}: {self.dtype} of {size}" if self.name else f"{self.dtype} of {size}"


def compare_arrays(
    path: Path, arrays: Sequence[Array]
) -> Literal["same", "different", "unreadable"]:
    """Tell whether a file of numpy, .npz or .npy, holds these arrays; others beside are fine."""
    import numpy as np

    try:
        with path.open("rb") as file:
            stored: Any = np.load(file, allow_pickle=False)
            if isinstance(stored, np.ndarray):
                held = {"": stored}
            else:
                held = {one.name: stored[one.name] for one in arrays if one.name in stored}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return "unreadable"
    same = all(one.name in held and is_array(held[one.name], one) for one in arrays)
    return "same" if same else "different"


def is_array(values: "NDArray[Any]", wanted: Array) -> bool:
    """Tell whether the values are those of the array."""
    import numpy as np

    if values.shape != wanted.shape or values.dtype.kind not in "biuf":
        return False
    with np.errstate(all="ignore"):
        cast = np.ascontiguousarray(values, np.dtype(wanted.dtype).newbyteorder("<"))
    if cast.dtype.kind != "f" and not np.array_equal(cast, values):
        return False
    return hashlib.sha256(cast.tobytes()).hexdigest() == wanted.sha256
