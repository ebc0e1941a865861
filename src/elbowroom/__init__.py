"""Room for training: error-bounded compression of what a run keeps, sends and stores."""

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

__version__ = "0.1.0"
