"""How much memory is in use, and how much was at most."""

import ctypes
import os
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from elbowroom.arena import Arena, Cap, share_arena
from elbowroom.errors import InvalidArgument
from elbowroom.host import tell_malloc, trim_heap

# Between two looks at the size of the process.
_SAMPLE_S = 0.0005

# Of prctl(2).
_PR_SET_THP_DISABLE = 41
_LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


class Gauge(Protocol):
    """Memory of a process or a device."""

    def now(self) -> int:
        """Bytes in use."""
        ...

    def peak(self) -> int:
        """Most bytes in use since the last reset."""
        ...

    def reset(self) -> None:
        """Forget the peak."""
        ...


class Watch(Gauge, Protocol):
    """A gauge that may need attention to see a peak."""

    def start(self) -> None:
        """Watch until `stop`."""
        ...

    def stop(self) -> None:
        """Watch no longer."""
        ...

    def rest(self) -> None:
        """Nothing is to come for now."""
        ...

    def wake(self) -> None:
        """Something is to come."""
        ...


class Process:
    """The resident memory of this process, as the kernel counts it; a reset resets its mark."""

    def now(self) -> int:
        """Bytes in use."""
        return _status(b"VmRSS")

    def peak(self) -> int:
        """Most bytes in use since the last reset, or ever where the kernel allows no reset."""
        return _status(b"VmHWM")

    def reset(self) -> None:
        """Forget the peak."""
        with suppress(OSError), open("/proc/self/clear_refs", "wb", buffering=0) as file:
            file.write(b"5")


class Sampled:
    """The same, without a reset of the kernel's mark, by which others judge the process.

    A record is known from the kernel to the byte; what stays below the record is looked at every
    half millisecond while `watch` lasts.
    """

    def __init__(self) -> None:
        self._record = 0
        self._most = 0
        self._is_watching = threading.Event()

    def now(self) -> int:
        """Bytes in use."""
        return _status(b"VmRSS")

    def peak(self) -> int:
        """Most bytes in use since the last reset."""
        record = _status(b"VmHWM")
        return record if record > self._record else max(self._most, self.now())

    def reset(self) -> None:
        """Forget the peak."""
        self._record, self._most = _status(b"VmHWM"), 0

    def start(self) -> None:
        """Watch until `stop`."""
        if not self._is_watching.is_set():
            self._is_watching.set()
            threading.Thread(
                target=_watch, args=(weakref.ref(self),), name="elbowroom-gauge", daemon=True
            ).start()

    def stop(self) -> None:
        """Watch no longer."""
        self._is_watching.clear()

    def rest(self) -> None:
        """Nothing is to come for now."""
        self.stop()

    def wake(self) -> None:
        """Something is to come."""

    def look(self, now: int) -> bool:
        """So much is in use; False when nobody wants to know any more."""
        self._most = max(self._most, now)
        return self._is_watching.is_set()


def _watch(gauge: "weakref.ref[Sampled]") -> None:
    """Until the gauge has enough, or is gone: nobody stops one whose last pass was watched."""
    page = os.sysconf("SC_PAGE_SIZE")
    file = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        while True:
            now = int(os.pread(file, 256, 0).split()[1]) * page
            held = gauge()
            if held is None or not held.look(now):
                break
            del held
            time.sleep(_SAMPLE_S)
    finally:
        os.close(file)


class Lean:
    """The process without what is free in the arena, which goes back as it nears the cap.

    The arena looks at the process on its own, every half millisecond and whenever it grows. What
    the kernel knows beyond the cap has happened between two looks.
    """

    def __init__(self, arena: Arena, cap_bytes: int) -> None:
        self._arena, self._cap_bytes = arena, cap_bytes
        self._cap: Cap | None = None
        self._record = 0

    def now(self) -> int:
        """Bytes in use."""
        return self._arena.need_bytes()

    def peak(self) -> int:
        """Most bytes in use since the last reset, or since this was asked last."""
        now, record = self.now(), _status(b"VmHWM")
        known = max(now, self._arena.take_peak_bytes())
        return max(known, record) if record > max(self._record, self._cap_bytes) else known

    def reset(self) -> None:
        """Forget the peak."""
        self._arena.take_peak_bytes()
        self._record = _status(b"VmHWM")

    def start(self) -> None:
        """The arena looks all the time."""

    def stop(self) -> None:
        """The arena looks all the time."""

    def rest(self) -> None:
        """Nothing is to come for now: what is free goes back."""
        if self._cap is not None:
            self._cap.lift()
            self._cap = None
        self._arena.purge()

    def wake(self) -> None:
        """Something is to come."""
        if self._cap is None:
            self._cap = self._arena.cap(self._cap_bytes)


class Device:
    """The memory that torch's allocator holds for tensors on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> int:
        """Bytes in use."""
        return torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        """Most bytes in use since the last reset."""
        return torch.cuda.max_memory_allocated(self._device)

    def reset(self) -> None:
        """Forget the peak."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def start(self) -> None:
        """Torch counts all the time."""

    def stop(self) -> None:
        """Torch counts all the time."""

    def rest(self) -> None:
        """Torch counts all the time."""

    def wake(self) -> None:
        """Torch counts all the time."""


def device_of(model: nn.Module) -> torch.device:
    """Where its parameters are."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def gauge_of(device: torch.device) -> "Process | Device":
    """The gauge of what holds tensors of this device."""
    if device.type == "cuda":
        return Device(device)
    if not Path("/proc/self/status").exists():
        raise InvalidArgument(
            "memory= needs a system that tells a process its size, such as Linux: leave memory "
            "out and set a tolerance"
        )
    return Process()


def left_bytes(model: nn.Module) -> int:
    """How much more can be taken now without a new peak; nothing where nobody counts."""
    device = device_of(model)
    if device.type != "cuda" and not Path("/proc/self/status").exists():
        return 0
    gauge = gauge_of(device)
    arena = share_arena() if device.type == "cpu" else None
    return gauge.peak() - (gauge.now() if arena is None else arena.need_bytes())


def watch_of(device: torch.device, cap_bytes: int) -> Watch:
    """The gauge of what holds tensors of this device, where no more than that is to be used.

    It leaves no trace. On the host the arena serves, or the C library's heap where there is none.
    """
    found = gauge_of(device)
    if isinstance(found, Device):
        return found
    use_fewer_large_pages()
    arena = share_arena()
    if arena is not None:
        trim_heap()
        return Lean(arena, cap_bytes)
    return_freed_memory(at_once=True)
    return Sampled()


def use_fewer_large_pages(setting: Path = _LARGE_PAGES) -> bool:
    """Have the kernel give this process no large pages where it would for anything.

    A thread's stack or a heap of which little is used takes two megabytes more with them, and under
    a budget every page counts. Where they have to be asked for only tensors have them, in memory of
    their own, of which all is used. True if the kernel was told so.
    """
    try:
        is_for_all = "[always]" in setting.read_text(encoding="ascii")
    except OSError:
        return False
    library = ctypes.CDLL(None)
    if not is_for_all or not hasattr(library, "prctl"):
        return False
    return library.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0


def return_freed_memory(*, at_once: bool) -> None:
    """Have the C library give what is free back now, and large blocks when they are freed.

    `at_once` from 128 KB on, else from 32 as it does by itself. Kept blocks cost nothing to
    reuse, but a heap with holes can be twice as large as what is in it.
    """
    size = 1 << 17 if at_once else 32 << 20
    if tell_malloc(mmap_bytes=size, trim_bytes=2 * size):
        trim_heap()


def _status(field: bytes) -> int:
    with open("/proc/self/status", "rb", buffering=0) as file:
        text = file.read(1 << 14)
    _, _, rest = text.partition(field + b":")
    return int(rest.split(None, 1)[0]) * 1024 if rest else 0
