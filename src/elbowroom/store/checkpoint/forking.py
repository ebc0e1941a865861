"""Snapshots without a copy: a forked process sees memory as it was, and writes it.

The kernel copies a page only when the training writes to it. That is cheap where little changes, as
in a network of which most is frozen, and several times dearer than a plain copy where all does. The
child computes digests, compresses and writes, and calls nothing of torch, whose threads it has not.
"""

import contextlib
import ctypes
import os
import signal
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elbowroom.errors import ElbowroomError, InvalidArgument
from elbowroom.store.checkpoint.layout import layout_of, place_over
from elbowroom.store.checkpoint.locks import keep_locks
from elbowroom.store.checkpoint.snapshot import Buffer, Piece, Snapshot

_PR_SET_PDEATHSIG = 1
_MOST_SAID = 2000

MODES = ("auto", "copy", "fork")
# Copying a page when it is written to costs some six times a plain copy of it.
_MOST_CHANGED = 0.15
_LEAST_BYTES = 64 << 20  # below, a copy takes less time than a fork
_TRIALS = 3


class LiveBuffer(Buffer):
    """The memory of the tensors themselves, which only a forked process may take its time with."""

    def __init__(self, tensors: Sequence[tuple[str, Tensor]]) -> None:
        super().__init__()
        self._arrays: dict[str, NDArray[np.uint8]] = {}
        self._held: list[Tensor] = []
        for where, tensor in tensors:
            layout = layout_of(tensor, where)
            plain = tensor.detach().resolve_conj().resolve_neg()
            if tuple(plain.stride()) != layout.stride and layout.nbytes:
                # With gaps in it; what is small enough to be a view is small enough to be copied.
                raw = torch.empty(layout.nbytes, dtype=torch.uint8)
                place_over(raw, layout).copy_(plain)
                plain = raw
            self._held.append(plain)
            # The memory itself: storages know nothing of views, strides and types.
            raw = torch.empty(0, dtype=torch.uint8)
            start = plain.storage_offset() * plain.itemsize
            raw.set_(plain.untyped_storage(), start, (layout.nbytes,))  # pyright: ignore[reportCallIssue]
            self._arrays[where] = raw.numpy()

    def bytes_of(self, piece: Piece) -> NDArray[np.uint8]:
        """The memory of a tensor."""
        return self._arrays[piece.where]


def can_fork(tensors: Sequence[tuple[str, Tensor]]) -> bool:
    """Whether a forked process could read these tensors and end well."""
    is_used = torch.cuda.is_available() and torch.cuda.is_initialized()
    return sys.platform == "linux" and not is_used and all(tensor.is_cpu for _, tensor in tensors)


@dataclass(frozen=True, kw_only=True)
class Forked:
    """A process that writes a snapshot."""

    step: int
    facts: dict[str, str]
    process: int
    said: int

    def wait(self) -> None:
        """Until it has ended; raises what went wrong with it."""
        with os.fdopen(self.said, "rb") as pipe:
            text = pipe.read().decode(errors="replace")
        _, status = os.waitpid(self.process, 0)
        if text or status:
            raise ChildProcessError(text or f"the process that wrote it has ended with {status}")


def fork(snapshot: Snapshot, write: Callable[[Snapshot], object]) -> Forked:
    """Have a child write a snapshot of this very moment."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    with warnings.catch_warnings():
        # Newer Pythons warn of forking beside threads: the child touches nothing of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        with keep_locks():
            process = os.fork()
    if process == 0:
        _run(snapshot, write, write_end)
    os.close(write_end)
    return Forked(step=snapshot.step, facts=dict(snapshot.facts), process=process, said=read_end)


def _run(snapshot: Snapshot, write: Callable[[Snapshot], object], pipe: int) -> None:
    """The child's whole life; it ends here, and runs nobody's handlers."""
    try:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        # It must not hold the store's lock for long when the run is gone and starts again.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.nice(10)
        write(snapshot)
    except (OSError, ElbowroomError) as error:
        os.write(pipe, str(error).encode()[:_MOST_SAID])
    except BaseException as error:
        os.write(pipe, f"{type(error).__name__}: {error}".encode()[:_MOST_SAID])
    finally:
        os._exit(0)


class Choice:
    """Copy or fork: by what both were seen to cost, once little enough changes for a trial."""

    def __init__(self, asked: str) -> None:
        if asked not in MODES:
            raise InvalidArgument(f"snapshot must be one of {', '.join(MODES)}, got {asked!r}")
        self._asked = asked
        self._costs: dict[str, list[float]] = {"copy": [], "fork": []}
        self._last = "copy"

    def pick(self, tensors: Sequence[tuple[str, Tensor]], changed: float | None) -> str:
        """How to take the next snapshot; `changed` is the share of bytes that were new last."""
        self._last = self._choose(tensors, changed)
        return self._last

    def saw(self, added_s: float) -> None:
        """The last one has cost the loop so much."""
        self._costs[self._last] = [*self._costs[self._last][-4:], added_s]

    def _choose(self, tensors: Sequence[tuple[str, Tensor]], changed: float | None) -> str:
        if self._asked == "copy" or not can_fork(tensors):
            return "copy"
        copies, forks = self._costs["copy"], self._costs["fork"]
        if self._asked == "fork":
            return "fork"
        is_small = sum(tensor.nbytes for _, tensor in tensors) < _LEAST_BYTES
        if is_small or len(copies) < _TRIALS or changed is None or changed > _MOST_CHANGED:
            return "copy"
        if len(forks) < _TRIALS:
            return "fork"
        return "fork" if statistics.median(forks) < statistics.median(copies) else "copy"
