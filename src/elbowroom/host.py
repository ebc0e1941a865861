"""What torch's allocator on the host, and the one below it, are told."""

import ctypes
import os
import sys
from collections.abc import Callable

from elbowroom.containers import left_bytes, limit_bytes

_VARIABLE = "THP_MEM_ALLOC_ENABLE"


def align_large_tensors() -> None:
    """Have torch lay large tensors on page boundaries, unless the user has decided.

    By default they lie on 64 bytes, and of such blocks glibc before 2.38 cannot use the places
    again once they are free: a process whose activations are encoded would stay as large as one
    whose activations are kept. Torch reads the variable once, at its first tensor.
    """
    os.environ.setdefault(_VARIABLE, "1")


# Names of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_TRIM_BYTES, _MMAP_BYTES = 128 << 20, 64 << 20


# Of saved tensors a step, from which on holes in the heap are worth a look.
TRIM_FROM_BYTES = 32 << 20


def recycle_memory() -> bool:
    """Have glibc use memory again that it would give back, unless the user has decided.

    Every tensor of more than 32 MiB has pages of its own by default, and the heap is cut as soon as
    64 MiB at its end are free: a step gets all of it back from the kernel, page by page and
    cleared, which took up to a third of its time in a U-Net. The heap may now have 128 MiB to
    spare, and tensors of up to 64 MiB lie in it. True if glibc was told so.
    """
    if sys.platform != "linux" or has_chosen_memory():
        return False
    return tell_malloc(mmap_bytes=_MMAP_BYTES, trim_bytes=_TRIM_BYTES)


def has_chosen_memory() -> bool:
    """Whether the user has told the C library how to hand memory out."""
    chosen = any(f"MALLOC_{name}_THRESHOLD_" in os.environ for name in ("TRIM", "MMAP"))
    return chosen or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")


def tell_malloc(*, mmap_bytes: int, trim_bytes: int) -> bool:
    """Have the C library lay blocks from a size on apart, and cut the heap where so much is free.

    True if it has been told so.
    """
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is None:
        return False
    return (tell(_M_TRIM_THRESHOLD, trim_bytes), tell(_M_MMAP_THRESHOLD, mmap_bytes)) == (1, 1)


def trim_heap() -> None:
    """Give what is free in the heap back to the system.

    Between steps hardly anything is in it but holes, and a heap with holes grows: what comes next
    does not fit into them.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def resident_bytes() -> int:
    """Of this process, holes included; zero where nobody tells."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


class _Mallinfo(ctypes.Structure):
    """As in glibc's malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated_bytes() -> int | None:
    """What the C library has handed out and not got back; None where it does not tell."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return None
    ask.restype = _Mallinfo
    found = ask()
    return int(found.uordblks) + int(found.hblkhd)


class Trimmer:
    """Trims the heap of a loop that has grown, looking each time that so many bytes have passed.

    Steps of equal shapes fit into the holes of those before: there, pages that are given back are
    asked for again at once, which takes longer than a small step.
    """

    def __init__(
        self,
        every_bytes: int = TRIM_FROM_BYTES,
        resident: Callable[[], int] = resident_bytes,
        trim: Callable[[], None] = trim_heap,
    ) -> None:
        self._every, self._passed = every_bytes, 0
        self._resident, self._trim = resident, trim
        self._is_trimmed = False
        self._level: int | None = None

    def passed(self, nbytes: int) -> None:
        """So many more have come and gone."""
        self._passed += nbytes
        if self._passed < self._every:
            return
        self._passed = 0
        if not self._is_trimmed:
            self._trim()
            self._is_trimmed = True
            return
        # With what a step has at once: only what comes on top of that is holes.
        now = self._resident()
        if self._level is None:
            self._level = now
        elif now - self._level > self._every // 2:
            self._trim()
            self._level = None


def available_bytes() -> int:
    """Memory that could be had without swapping; of unknown systems, more than any has.

    Of the machine's, no more than its job or container may take.
    """
    return min(_free_bytes(), left_bytes())


def whole_bytes() -> int:
    """The machine's memory, or what its job or container may take where that is less."""
    return min(_meminfo_bytes("MemTotal:"), limit_bytes())


def _free_bytes() -> int:
    return _meminfo_bytes("MemAvailable:")


def _meminfo_bytes(name: str) -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith(name):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return sys.maxsize
