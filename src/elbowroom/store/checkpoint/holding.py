"""The right to write to a store, which one run has at a time."""

import contextlib
import os
import time

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint.place import Place


def hold_writer(place: Place, patience_s: float = 0.0) -> contextlib.ExitStack:
    """Keep other writers out until what is returned is closed; refuses where another does."""
    deadline = time.monotonic() + patience_s
    while True:
        with contextlib.ExitStack() as held:
            if held.enter_context(place.lock("writer")):
                place.claim()
                held.callback(place.release)
                return held.pop_all()
        if time.monotonic() > deadline:
            raise InvalidArgument(
                f"another run is writing checkpoints to {place.root}: end it, or name another "
                "folder; if it is this process itself, close() the Checkpointer that it has"
                + _say_launched()
            )
        time.sleep(0.05)


def _say_launched() -> str:
    """What may be the matter when a launcher has started several processes that look alone."""
    import torch.distributed as dist

    size = os.environ.get("WORLD_SIZE", "1")
    if size == "1" or (dist.is_available() and dist.is_initialized()):
        return ""
    return (
        f"; if it is another of the {size[:8]} processes that were launched with this one, call "
        "torch.distributed.init_process_group before the Checkpointer is made"
    )
