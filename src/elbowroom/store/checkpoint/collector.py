"""Python's collector of cycles, told to wait while a checkpoint is found and read.

A manifest becomes thousands of objects, none of which is garbage, and by their number the collector
decides to look at everything that the process has: with torch loaded that takes as long as reading
some hundred megabytes.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def let_collector_wait() -> Iterator[None]:
    """No look for cycles inside of the block; one that the user has switched off stays off."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
