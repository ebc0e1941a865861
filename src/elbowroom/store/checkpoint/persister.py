"""Writes snapshots beside the training: one after another, in a thread of its own."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from elbowroom.store.checkpoint.forking import Forked
from elbowroom.store.checkpoint.snapshot import Buffer, Snapshot


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a save has ended."""

    step: int
    seconds: float
    error: BaseException | None = None


class Persister:
    """A thread, and buffers that go round: filled by the loop, emptied by the thread."""

    def __init__(
        self,
        write: Callable[[Snapshot], None],
        buffers: int,
        adopt: Callable[[Forked], None] = Forked.wait,
        tidy: Callable[[], None] = lambda: None,
    ) -> None:
        self._adopt, self._tidy = adopt, tidy
        self._write = write
        self._free: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
        for _ in range(buffers):
            self._free.put(Buffer())
        self._work: queue.SimpleQueue[Snapshot | Forked | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._waiting = 0
        self._idle = threading.Event()
        self._idle.set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether something is being written."""
        return not self._idle.is_set()

    def take_buffer(self) -> Buffer:
        """A buffer for the next snapshot; waits until there is one."""
        return self._free.get()

    def give_back(self, buffer: Buffer) -> None:
        """It is no longer needed."""
        self._free.put(buffer)

    def has_buffer(self) -> bool:
        """Whether taking one would not wait."""
        return not self._free.empty()

    def submit(self, snapshot: Snapshot | Forked) -> None:
        """Have it written."""
        with self._lock:
            self._waiting += 1
            self._idle.clear()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="elbowroom checkpoint", daemon=True
            )
            self._thread.start()
        self._work.put(snapshot)

    def outcomes(self) -> list[Outcome]:
        """What has ended since the last call."""
        found = []
        while not self._outcomes.empty():
            found.append(self._outcomes.get())
        return found

    def wait(self) -> None:
        """Until all is written."""
        self._idle.wait()

    def close(self) -> None:
        """Finish what was begun, and end the thread."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        # The training goes first, where threads have priorities of their own.
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while (snapshot := self._work.get()) is not None:
            start = time.perf_counter()
            error: BaseException | None = None
            try:
                if isinstance(snapshot, Forked):
                    self._adopt(snapshot)
                else:
                    self._write(snapshot)
            except BaseException as caught:  # told to whoever asks next; the thread lives on
                error = caught
            seconds = time.perf_counter() - start
            self._outcomes.put(Outcome(step=snapshot.step, seconds=seconds, error=error))
            if error is None:
                with contextlib.suppress(Exception):  # the checkpoint is there, whatever this does
                    self._tidy()
            with self._lock:
                self._waiting -= 1
                if self._waiting == 0:
                    self._idle.set()
