"""How many threads a call may use."""

import os

import torch

from elbowroom import _native
from elbowroom.errors import InvalidArgument

# Below this, handing work to other threads takes longer than the work.
PARALLEL_BYTES = 256 << 10

# More would only be overhead, and the kernels count them in 32 bits.
MOST_THREADS = 1024

VARIABLE = "ELBOWROOM_THREADS"

# Torch has loaded its OpenMP by now, whose threads spin for a while after each of its kernels:
# threads of ours would have to wait for the cores.
_native.join_team()


def thread_count(asked: int | None, nbytes: int) -> int:
    """The number asked for, else ELBOWROOM_THREADS, else torch's; one for small arrays."""
    if asked is not None:
        if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
            raise InvalidArgument(
                f"threads must be a positive integer, got {asked!r}: leave it out for torch's"
            )
        return min(asked, MOST_THREADS)
    if nbytes < PARALLEL_BYTES:
        return 1
    text = os.environ.get(VARIABLE)
    if not text:
        return torch.get_num_threads()
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InvalidArgument(
            f"{VARIABLE} must be a positive integer, got {text!r}: correct or unset it"
        )
    return min(int(text), MOST_THREADS)
