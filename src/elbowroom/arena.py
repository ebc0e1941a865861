"""Large tensors on the host in memory of their own, which is used again and kept small."""

import ctypes
import functools
import os
import resource
import sys
import weakref
from pathlib import Path
from typing import NamedTuple

from elbowroom.host import has_chosen_memory, tell_malloc

# From here on a tensor lies in the arena; below, holes are small and the heap is quicker.
ARENA_FROM_BYTES = 256 << 10

# The heap beside of it holds nothing that is large: what libraries take for themselves, from this
# size on, gets pages of its own, and little stays free at the end.
_HEAP_LARGEST_BYTES = 1 << 20
_HEAP_FREE_BYTES = 4 << 20


class Counts(NamedTuple):
    """What the arena holds, and has held."""

    live_bytes: int
    """In tensors."""

    peak_live_bytes: int
    """The most of that, in this pass."""

    peak_need_bytes: int
    """The most that the process took in this pass, without what was free in the arena."""

    free_bytes: int
    """Free, and not given back to the system."""

    taken_bytes: int
    """Got from the system since the start."""

    returned_bytes: int
    """Given back to it since the start."""


class Arena:
    """A share in the arena of this process: large tensors lie in it while anybody has one."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._end = weakref.finalize(self, library.elbowroom_arena_release)
        self._end.atexit = False

    def begin_pass(self, *, slack: float) -> None:
        """Keep what the process takes below the most that this pass or the last one has needed.

        Of what is in tensors, the share `slack` may be taken on top. Where there is a cap, that
        counts instead.
        """
        self._library.elbowroom_arena_begin_pass(round(256 * slack))

    def cap(self, nbytes: int) -> "Cap":
        """Keep what the process takes below this instead, as far as what is free goes."""
        return Cap(self._library, nbytes)

    def need_bytes(self) -> int:
        """What the process takes now, without what is free here."""
        return self._library.elbowroom_arena_need()

    def take_peak_bytes(self) -> int:
        """The most of that since the last call."""
        return self._library.elbowroom_arena_take_peak()

    def settle(self) -> None:
        """Give memory back if the process has grown beyond its limit for other reasons."""
        self._library.elbowroom_arena_settle()

    def purge(self) -> None:
        """Give everything back that is free."""
        self._library.elbowroom_arena_purge()

    def counts(self) -> Counts:
        """Now."""
        found = (ctypes.c_size_t * 6)()
        self._library.elbowroom_arena_counts(found)
        return Counts(*found)

    def close(self) -> None:
        """Have no share any more."""
        self._end()


class Cap:
    """Of the process, while it lives; of several the least counts."""

    def __init__(self, library: ctypes.CDLL, nbytes: int) -> None:
        library.elbowroom_arena_cap(nbytes)
        self._end = weakref.finalize(self, library.elbowroom_arena_lift, nbytes)
        self._end.atexit = False

    def lift(self) -> None:
        """End it."""
        self._end()


def share_arena() -> Arena | None:
    """A share in the arena, or None where there is none: the heap then serves as ever.

    That is so beyond Linux, where the package was built without torch or for another one, where
    addresses are limited (`ulimit -v`, `-d`), and where the user has chosen how memory is handed
    out.
    """
    library = None if has_chosen_memory() or _is_limited() else _load()
    if library is None:
        return None
    # Holes cost addresses, of which there are plenty.
    most_bytes = 4 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if library.elbowroom_arena_hold(ARENA_FROM_BYTES, most_bytes) != 1:
        return None
    tell_malloc(mmap_bytes=_HEAP_LARGEST_BYTES, trim_bytes=_HEAP_FREE_BYTES)
    return Arena(library)


def _is_limited() -> bool:
    """Whether addresses count, of which the arena takes more than it uses."""
    limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    return any(resource.getrlimit(which)[0] != resource.RLIM_INFINITY for which in limits)


@functools.cache
def _load() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    import torch  # its library has to be there first

    from elbowroom import _native

    try:
        library = ctypes.CDLL(str(Path(_native.__file__).with_name("_arena.so")))
    except OSError:
        return None
    library.elbowroom_arena_torch.restype = ctypes.c_char_p
    built_with: bytes = library.elbowroom_arena_torch()
    if built_with.decode().split(".")[:2] != torch.__version__.split(".")[:2]:
        return None
    sizes = [ctypes.c_size_t, ctypes.c_size_t]
    library.elbowroom_arena_hold.argtypes = sizes
    for name in ("begin_pass", "cap", "lift"):
        getattr(library, f"elbowroom_arena_{name}").argtypes = sizes[:1]
    for name in ("begin_pass", "lift", "release", "settle", "purge", "counts"):
        getattr(library, f"elbowroom_arena_{name}").restype = None
    for name in ("need", "take_peak"):
        getattr(library, f"elbowroom_arena_{name}").restype = ctypes.c_size_t
    return library
