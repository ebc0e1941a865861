"""Signals by which a cluster says that the time is up."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
# A cluster tells all processes of a job, and a launcher that was told tells its own once more.
SAME_S = 10.0


class Notice:
    """Notes that a signal has come; what to do about it is decided between two steps."""

    def __init__(self) -> None:
        self.number = 0
        self._process = os.getpid()
        self._before: dict[int, Any] = {}
        self._is_listening = False
        self._came_at: dict[int, float] = {}

    def listen(self) -> None:
        """From now on; only the main thread may, and elsewhere signals do what they did."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._is_listening = True
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._note)

    def ignore(self) -> None:
        """As it was before."""
        self._is_listening = False
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._before.items():
            # Someone else may have come after us, whose handler is not ours to take away.
            if signal.getsignal(number) == self._note:
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        is_ours = self._is_listening and os.getpid() == self._process
        if is_ours and now - self._came_at.setdefault(number, now) <= SAME_S:
            self.number = number
            return
        # Whoever sends it again later wants what was there before. So does one who sends it to a
        # process that was forked since; and one who came after us may have put us back.
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
