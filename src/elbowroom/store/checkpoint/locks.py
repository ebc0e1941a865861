"""Locks end with the process that took them, not with those that it forked."""

import contextlib
import os
from collections.abc import Iterator

# Locks belong to open files, and a forked process has them as well: a loader's worker that outlives
# a run that was killed would keep the next one out.
held_locks: set[int] = set()
_is_kept = False


@contextlib.contextmanager
def keep_locks() -> Iterator[None]:
    """A process that is forked inside of the block keeps them: it writes for the one that did."""
    global _is_kept  # noqa: PLW0603  asked by a hook that takes no arguments
    _is_kept = True
    try:
        yield
    finally:
        _is_kept = False


def _let_go() -> None:
    if _is_kept:
        return
    for handle in held_locks:
        with contextlib.suppress(OSError):
            os.close(handle)
    held_locks.clear()


os.register_at_fork(after_in_child=_let_go)
