"""What a run removes as it goes on: old checkpoints, and never what the next one builds on."""

import contextlib
import threading
from collections.abc import Callable, Sequence

from elbowroom.store.checkpoint.naming import Name
from elbowroom.store.checkpoint.retention import Keep
from elbowroom.store.checkpoint.store import Store


class Clearing:
    """Removes what need not stay; to be asked by the one who holds the writer's lock.

    Its threads may ask at once: the one that has committed a checkpoint, and the one that has
    brought one to the far tier, while which nothing could be removed.
    """

    def __init__(self, store: Store, keep: Keep, *, has_parts: bool = False) -> None:
        self._store, self._keep = store, keep
        self._lock = threading.Lock()
        self._base: Name | None = None
        self._broken: set[Name] = set()
        self._upto = 0
        self._has_leftovers = False
        # What ranks write for the first one is of no use to anybody once it is in a manifest.
        self._is_needed = has_parts or keep.last is not None
        self.is_over: Callable[[], bool] = lambda: False

    def build_on(self, name: Name) -> None:
        """The next checkpoint will name what this one names."""
        with self._lock:
            self._base = name

    def pass_over(self, name: Name) -> None:
        """That one is damaged: it does not count among those that stay, in place of a whole one."""
        with self._lock:
            self._broken.add(name)

    def must_end(self) -> bool:
        """Whether the process has no time left for it."""
        return self.is_over()

    def note_leftovers(self) -> None:
        """A save has failed, and may have left files that nothing names."""
        with self._lock:
            self._has_leftovers = True

    def clear(self, upto: int | None = None) -> None:
        """Remove what need not stay; what belongs to a later order than `upto` is being made."""
        # What cannot be removed now can be removed next time.
        with self._lock, contextlib.suppress(OSError):
            self._upto = max(self._upto, upto or 0)
            if self.is_over() or not (self._is_needed or self._has_leftovers):
                return
            self._store.collect(
                self._choose, upto=self._upto, uploads=self._has_leftovers, is_over=self.is_over
            )
            self._has_leftovers = False

    def _choose(self, names: Sequence[Name]) -> set[Name]:
        stay = {*self._keep.choose(names)}
        stay |= {*self._keep.choose([name for name in names if name not in self._broken])}
        return stay if self._base is None else stay | {self._base}
