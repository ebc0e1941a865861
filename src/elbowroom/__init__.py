"""Room for training: error-bounded compression of what a run keeps, sends and stores.

blob = encode(x, Bound.absolute(1e-3))   # a torch tensor or numpy array
y = decode(blob)                         # same type, shape and strides; |x - y| <= 1e-3
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from elbowroom.errors import BackendUnavailable as BackendUnavailable
from elbowroom.errors import BudgetUnreachable as BudgetUnreachable
from elbowroom.errors import CorruptData as CorruptData
from elbowroom.errors import ElbowroomError as ElbowroomError
from elbowroom.errors import IncompatibleFormat as IncompatibleFormat
from elbowroom.errors import InvalidArgument as InvalidArgument
from elbowroom.errors import MissingData as MissingData
from elbowroom.errors import StoreUnreachable as StoreUnreachable
from elbowroom.host import align_large_tensors

__all__ = [
    "Activations",
    "BackendUnavailable",
    "Blob",
    "Bound",
    "BudgetUnreachable",
    "Checkpointer",
    "CorruptData",
    "ElbowroomError",
    "IncompatibleFormat",
    "InvalidArgument",
    "Loop",
    "MissingData",
    "StoreUnreachable",
    "decode",
    "encode",
    "load",
    "loop",
]
__version__ = "0.1.0"

align_large_tensors()

# Torch takes seconds to import. What stands on it comes when it is first asked for, so that the
# command line can answer at once; here is the part that each name lives in.
_PARTS = {
    "Activations": "keep",
    "Blob": "codec",
    "Bound": "codec",
    "Checkpointer": "store",
    "Loop": "keep",
    "decode": "codec",
    "encode": "codec",
    "load": "store",
    "loop": "keep",
}

if TYPE_CHECKING:
    from elbowroom.codec import Blob as Blob
    from elbowroom.codec import Bound as Bound
    from elbowroom.codec import decode as decode
    from elbowroom.codec import encode as encode
    from elbowroom.keep import Activations as Activations
    from elbowroom.keep import Loop as Loop
    from elbowroom.keep import loop as loop
    from elbowroom.store import Checkpointer as Checkpointer
    from elbowroom.store import load as load
else:

    def __getattr__(name: str) -> object:
        if name in _PARTS.values() or name == "integrations":
            return import_module(f"elbowroom.{name}")
        if name not in _PARTS:
            raise AttributeError(f"module 'elbowroom' has no attribute {name!r}")
        value = getattr(import_module(f"elbowroom.{_PARTS[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "torch" in sys.modules:
    # Nothing is saved by waiting, and torch.ops.elbowroom is there without being asked for.
    import_module("elbowroom.codec")
