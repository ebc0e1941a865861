"""How much memory is in use, and how much was at most."""

import ctypes
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from elbowroom.errors import InvalidArgument

# Arguments of mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

# Of prctl(2).
_PR_SET_THP_DISABLE = 41


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


class Process:
    """The resident memory of this process, as the kernel counts it."""

    def __init__(self) -> None:
        self._largest = 0

    def now(self) -> int:
        """Bytes in use."""
        return _status("VmRSS")

    def peak(self) -> int:
        """Most bytes in use since the last reset, or ever where the kernel allows no reset."""
        return max(_status("VmHWM"), self._largest)

    def reset(self) -> None:
        """Forget the peak."""
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self._largest = 0


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


def device_of(model: nn.Module) -> torch.device:
    """Where its parameters are."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def gauge_of(device: torch.device) -> Gauge:
    """The gauge of what holds tensors of this device."""
    if device.type == "cuda":
        return Device(device)
    if not Path("/proc/self/status").exists():
        raise InvalidArgument(
            "memory= needs a system that tells a process its size, such as Linux: leave memory "
            "out and set a tolerance"
        )
    return Process()


def use_small_pages() -> None:
    """Have the kernel give this process small pages only.

    With large ones a tensor takes up to two megabytes more than it needs, and under a budget every
    page counts.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


def return_freed_memory(*, at_once: bool) -> None:
    """Have the C library give what is free back now, and large blocks when they are freed.

    `at_once` from one megabyte on, else from 32 as it does by itself. Kept blocks cost nothing to
    reuse, but a heap with holes can be twice as large as what is in it.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return
    size = 1 << 20 if at_once else 32 << 20
    library.mallopt(_M_MMAP_THRESHOLD, size)
    library.mallopt(_M_TRIM_THRESHOLD, 2 * size)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0
