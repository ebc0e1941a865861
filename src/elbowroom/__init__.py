"""Room for training: error-bounded compression of what a run keeps, sends and stores.

blob = encode(x, Bound.absolute(1e-3))   # a torch tensor or numpy array
y = decode(blob)                         # same type, shape and strides; |x - y| <= 1e-3
"""

from elbowroom.codec import Blob as Blob
from elbowroom.codec import Bound as Bound
from elbowroom.codec import decode as decode
from elbowroom.codec import encode as encode
from elbowroom.errors import BackendUnavailable as BackendUnavailable
from elbowroom.errors import BudgetUnreachable as BudgetUnreachable
from elbowroom.errors import CorruptData as CorruptData
from elbowroom.errors import ElbowroomError as ElbowroomError
from elbowroom.errors import IncompatibleFormat as IncompatibleFormat
from elbowroom.errors import InvalidArgument as InvalidArgument

__all__ = [
    "BackendUnavailable",
    "Blob",
    "Bound",
    "BudgetUnreachable",
    "CorruptData",
    "ElbowroomError",
    "IncompatibleFormat",
    "InvalidArgument",
    "decode",
    "encode",
]
__version__ = "0.1.0"
