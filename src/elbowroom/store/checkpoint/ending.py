"""Runs that end without closing what they have begun: it is finished before the process is gone."""

import os
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

_Thing = TypeVar("_Thing")

_ends: dict[int, Callable[[], None]] = {}


def register(thing: _Thing, finish: Callable[[_Thing], None]) -> int:
    """Have it finished when the interpreter ends, unless it is gone by then; return its number."""
    held = weakref.ref(thing)

    def end() -> None:
        found = held()
        if found is not None:
            finish(found)

    _ends[id(thing)] = end
    return id(thing)


def unregister(number: int) -> None:
    """It is closed."""
    _ends.pop(number, None)


def _end_all() -> None:
    while _ends:
        _ends.popitem()[1]()


# What a forked process has is its parent's to finish. Such processes end all the time: workers of a
# loader come here too.
os.register_at_fork(after_in_child=_ends.clear)
# Before threads can no longer be started, which is before atexit.
threading._register_atexit(_end_all)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
