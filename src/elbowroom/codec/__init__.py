"""Tensor and bound to blob and back: the codec that everything else stands on.

encode.py and decode.py are the way in and out; bound.py says what may be lost, quantise.py how,
recipe.py and blob.py how it is written down, backends/ who does the work, and ops.py makes it all
a torch operator.
"""

from elbowroom.codec import ops as _ops
from elbowroom.codec.blob import Blob as Blob
from elbowroom.codec.bound import Bound as Bound
from elbowroom.codec.decode import decode as decode
from elbowroom.codec.encode import encode as encode

del _ops  # imported for the operators that it registers
