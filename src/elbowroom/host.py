"""What torch's allocator on the host, and the one below it, are told."""

import ctypes
import os
import sys

_VARIABLE = "THP_MEM_ALLOC_ENABLE"


def align_large_tensors() -> None:
    """Have torch lay large tensors on page boundaries, unless the user has decided.

    By default they lie on 64 bytes, and of such blocks glibc before 2.38 cannot use the places
    again once they are free: a process whose activations are encoded would stay as large as one
    whose activations are kept. Torch reads the variable once, at its first tensor.
    """
    os.environ.setdefault(_VARIABLE, "1")


# Names of glibc's malloc.h, and what they are set to.
_M_TRIM_THRESHOLD, _TRIM_BYTES = -1, 128 << 20
_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 64 << 20


# Of saved tensors a step, from which on holes in the heap are worth a look.
TRIM_FROM_BYTES = 32 << 20


def recycle_memory() -> bool:
    """Have glibc use memory again that it would give back, unless the user has decided.

    Every tensor of more than 32 MiB has pages of its own by default, and the heap is cut as soon as
    64 MiB at its end are free: a step gets all of it back from the kernel, page by page and
    cleared, which took up to a third of its time in a U-Net. The heap may now have 128 MiB to
    spare, and tensors of up to 64 MiB lie in it. True if glibc was told so.
    """
    if sys.platform != "linux" or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    if any(f"MALLOC_{name}_THRESHOLD_" in os.environ for name in ("TRIM", "MMAP")):
        return False
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is None:
        return False
    told = tell(_M_TRIM_THRESHOLD, _TRIM_BYTES), tell(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    return told == (1, 1)


def trim_heap() -> None:
    """Give what is free in the heap back to the system.

    Between steps hardly anything is in it but holes, and a heap with holes grows: what comes next
    does not fit into them.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


class Trimmer:
    """Trims the heap each time that so many bytes have come and gone."""

    def __init__(self, every_bytes: int = TRIM_FROM_BYTES) -> None:
        self._every, self._passed = every_bytes, 0

    def passed(self, nbytes: int) -> None:
        """So many more."""
        self._passed += nbytes
        if self._passed >= self._every:
            self._passed = 0
            trim_heap()


def available_bytes() -> int:
    """Memory that could be had without swapping; of unknown systems, more than any has."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return sys.maxsize
