"""What torch's allocator on the host must be told before the first tensor is made."""

import os

_VARIABLE = "THP_MEM_ALLOC_ENABLE"


def align_large_tensors() -> None:
    """Have torch lay large tensors on page boundaries, unless the user has decided.

    By default they lie on 64 bytes, and of such blocks glibc before 2.38 cannot use the places
    again once they are free: a process whose activations are encoded would stay as large as one
    whose activations are kept. Torch reads the variable once, at its first tensor.
    """
    os.environ.setdefault(_VARIABLE, "1")
