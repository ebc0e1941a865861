"""What a run removes as it goes on: old checkpoints, and never what the next one builds on."""

import contextlib
import threading

from elbowroom.store.checkpoint.retention import Keep
from elbowroom.store.checkpoint.store import Name, Store


class Clearing:
    """Removes what need not stay; to be asked by the one who holds the writer's lock.

    Its threads may ask at once: the one that has committed a checkpoint, and the one that has
    brought one to the far tier, while which nothing could be removed.
    """

    def __init__(self, store: Store, keep: Keep) -> None:
        self._store, self._keep = store, keep
        self._lock = threading.Lock()
        self._base: Name | None = None
        self._broken: set[Name] = set()
        self._upto = 0

    def build_on(self, name: Name) -> None:
        """The next checkpoint will name what this one names."""
        with self._lock:
            self._base = name

    def pass_over(self, name: Name) -> None:
        """That one is damaged: it does not count among those that stay, in place of a whole one."""
        with self._lock:
            self._broken.add(name)

    def clear(self, upto: int | None = None) -> None:
        """Remove what need not stay; what belongs to a later order than `upto` is being made."""
        # What cannot be removed now can be removed next time.
        with self._lock, contextlib.suppress(OSError):
            self._upto = max(self._upto, upto or 0)
            names = self._store.names()
            stay = {*self._keep.choose(names)}
            stay |= {*self._keep.choose([name for name in names if name not in self._broken])}
            if self._base is not None:
                stay.add(self._base)
            self._store.collect([name for name in names if name in stay], upto=self._upto)
