"""The peak of a process while it trains, told apart from that of all else that it does."""

import time
from contextlib import suppress

from elbowroom.keep.activations.gauge import Process

# A look takes as long as a small layer; at the same work no second one comes sooner.
_PAUSE_S = 0.002


class Peaks:
    """Looks at the kernel's mark whenever the work changes, and never resets it.

    Where the mark has risen, the rise belongs to the work that is over. Below the mark only samples
    tell, which are taken when a forward is over.
    """

    def __init__(self) -> None:
        self._process = Process()
        self._record = 0
        self._is_training = False
        self._looked_s = 0.0
        self._training_bytes = 0

    def look(self, *, is_training: bool) -> None:
        """From now on the process trains, or does not; twice the same is a sample."""
        now_s = time.monotonic()
        if is_training == self._is_training and now_s - self._looked_s < _PAUSE_S:
            return
        with suppress(OSError):
            record = self._process.peak()
            if self._is_training:
                taken = record if record > self._record else self._process.now()
                self._training_bytes = max(self._training_bytes, taken)
            self._record = record
        self._is_training, self._looked_s = is_training, now_s

    def take(self) -> int:
        """Most bytes while it trained, as far as was seen; 0 if it never did."""
        self._looked_s = 0.0
        self.look(is_training=self._is_training)
        return self._training_bytes
