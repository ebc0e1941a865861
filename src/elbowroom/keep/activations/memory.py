"""Where the tensors of passes lie on the host, and how what they leave is used again."""

from typing import Protocol

from torch import nn

from elbowroom.arena import Arena, share_arena
from elbowroom.host import recycle_memory
from elbowroom.keep.activations.heap import ALWAYS_BYTES, Heap


class Memory(Protocol):
    """Told of every pass, and of every large tensor in it."""

    @property
    def is_large(self) -> bool:
        """Whether there is so much to save that the peak counts for more than time."""
        ...

    def before_pass(self, saved_bytes: int) -> None:
        """The last pass would have saved so much plainly."""
        ...

    def note_saved(self, nbytes: int) -> None:
        """One more tensor of this pass has been encoded."""
        ...

    def within_pass(self, nbytes: int) -> None:
        """A tensor of this size has just been made again."""
        ...

    def rest(self) -> None:
        """No pass is to come for now."""
        ...


# What is encoded of so many bytes is large enough for a look at the process, which takes a while.
_LOOK_BYTES = 16 << 20

# Of what is in tensors, so much may be free on top of what they need at once: sizes take turns, and
# with nothing to spare a part of the pages would go to the system and come back in every pass. In
# large passes that part takes a hundredth of the time.
_SLACK, _LARGE_SLACK = 1 / 4, 1 / 64


class Pages:
    """Large tensors lie in the arena, which is used again and as large as its largest moment."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._saved = self._looked = 0
        self._is_large = False

    @property
    def is_large(self) -> bool:
        """Whether there is so much to save that the peak counts for more than time."""
        return self._is_large

    def before_pass(self, saved_bytes: int) -> None:
        """The last pass would have saved so much plainly."""
        self._is_large = saved_bytes >= ALWAYS_BYTES
        self._saved = self._looked = 0
        self._arena.begin_pass(slack=_LARGE_SLACK if self._is_large else _SLACK)

    def note_saved(self, nbytes: int) -> None:
        """One more tensor of this pass has been encoded, into memory beside the arena."""
        self._saved += nbytes
        if self._saved >= ALWAYS_BYTES:
            self._is_large = True
        if self._saved - self._looked >= _LOOK_BYTES:
            self._looked = self._saved
            self._arena.settle()

    def within_pass(self, nbytes: int) -> None:
        """A tensor of this size has just been made again, in the arena."""

    def rest(self) -> None:
        """No pass is to come for now."""
        self._arena.purge()


def memory_of(model: nn.Module) -> Memory | None:
    """On the host the arena, or the heap where there is none; None where both are not ours."""
    if not all(p.is_cpu for p in model.parameters()):
        return None
    arena = share_arena()
    if arena is not None:
        return Pages(arena)
    return Heap() if recycle_memory() else None
