"""Errors of our own machinery: training goes on without it, and they are told once a kind.

What the user's program would raise anyway stays what it is: memory that has run out, a budget that
cannot be met, an interrupt, and whatever the plain operation raises too.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from elbowroom.errors import BudgetUnreachable

_log = logging.getLogger("elbowroom")

T = TypeVar("T")

# What torch's allocator on the host says, in an error that has no type of its own.
_NO_MEMORY = ("can't allocate memory", "not enough memory")


def is_ours(error: BaseException) -> bool:
    """Whether plain training would not have met this error."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError | BudgetUnreachable):
        return False
    is_out = isinstance(error, RuntimeError) and any(said in str(error) for said in _NO_MEMORY)
    return isinstance(error, Exception) and not is_out


class Faults:
    """Those of one room."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._kinds: dict[tuple[str, type], str] = {}
        self._lock = threading.Lock()

    @property
    def events(self) -> tuple[str, ...]:
        """One sentence a kind, and how often it came."""
        found = list(self._counts.items())
        return tuple(f"{said} ({count} times)" if count > 1 else said for said, count in found)

    def note(self, what: str, error: Exception) -> None:
        """Tell what has been done instead; an error that is not ours goes on."""
        if not is_ours(error):
            raise error
        with self._lock:
            said = self._kinds.get((what, type(error)))
            if said is None:
                why = (str(error).splitlines() or [""])[0]
                said = f"{what} failed ({type(error).__name__}: {why}): please report it"
                self._kinds[what, type(error)] = said
                _log.warning(said)
            self._counts[said] = self._counts.get(said, 0) + 1

    def attempt(self, what: str, way: Callable[[], T], plainly: Callable[[], T]) -> T:
        """Our way, or where it fails the plain one; what fails both ways is the user's error."""
        try:
            return way()
        except Exception as error:
            if not is_ours(error):
                raise
            # Without the frames, which would hold tensors as long as the error is there.
            failed = error.with_traceback(None)
        found = plainly()
        self.note(what, failed)
        return found

    def guarded(self, what: str, function: Callable[[T], None]) -> Callable[[T], None]:
        """A call of ours, made by torch, that can be left undone."""

        def called(given: T) -> None:
            with self.around(what):
                function(given)

        return called

    def around(self, what: str) -> "_Around":
        """Work of ours that can be left undone."""
        return _Around(self, what)


class _Around:
    def __init__(self, faults: Faults, what: str) -> None:
        self._faults, self._what = faults, what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: Any,
    ) -> bool:
        if not isinstance(error, Exception) or not is_ours(error):
            return False
        self._faults.note(self._what, error)
        return True
