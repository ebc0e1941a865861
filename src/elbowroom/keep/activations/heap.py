"""When the heap's holes are given back before a pass: memory against page faults.

Pages that are given back come again cleared, one fault each, which takes up to a fifth of a small
network's step; pages that stay add up to more than any one step has at once. Where much is saved,
plain training gets its memory from the kernel anew in every step too, and giving back costs nothing
by comparison. Where little is saved, what one pass leaves of a heap without holes is compared with
what later ones leave: the rest is holes, which may become so large and no larger.

Where much is saved, holes come into being within a pass as well: layers at work take turns in
sizes, and a heap that is trimmed between passes only has grown to twice of what is in it by the end
of one. There what the process takes is compared with what it has asked for, at every large tensor.
How large holes may become follows from what is given back, which comes again page by page: no more
than plain training would save. Plain training of tensors that glibc lays apart gets all of them
page by page as well; there holes stay small.
"""

from collections.abc import Callable

from elbowroom.host import TRIM_FROM_BYTES, allocated_bytes, resident_bytes, trim_heap

# From here on glibc, left alone, has pages of their own for what a plain step saves.
ALWAYS_BYTES = 512 << 20

# The most that may go to holes, of what a pass takes, and of what plain training would save: else a
# process could take more than one that compresses nothing.
_OF_PASS, _OF_SAVED = 1 / 2, 1 / 4

# Tensors from this size on are worth a look at the holes, which within a large pass may become a
# share between these of what plain training would save. So much of the latter may be given back.
LOOK_BYTES = 4 << 20
_APART_BYTES = 32 << 20
_LEAST, _MOST = 1 / 24, 1 / 4
_GIVEN = 1.0

# Passes before holes are counted, in which bounds are being learned.
_LEARNED = 8


class Heap:
    """Asked before each pass; gives holes back when they have become large."""

    def __init__(
        self,
        resident: Callable[[], int] = resident_bytes,
        trim: Callable[[], None] = trim_heap,
        allocated: Callable[[], int | None] = allocated_bytes,
    ) -> None:
        self._resident, self._trim, self._allocated = resident, trim, allocated
        self._part = 1 / 12
        self._most = self._least = self._given = self._largest = self._saved = 0
        self._rest: int | None = None
        self._passes = 0
        self._bare: int | None = None
        self._once: int | None = None

    def before_pass(self, saved_bytes: int) -> None:
        """The last pass would have saved so much plainly."""
        self._saved = self._largest = 0
        if saved_bytes < ALWAYS_BYTES:
            self._rest = None
        if saved_bytes <= TRIM_FROM_BYTES:
            return
        self._passes += 1
        if saved_bytes >= ALWAYS_BYTES:
            self._measure(saved_bytes)
        elif self._passes <= _LEARNED:
            self._trim()
        elif self._bare is None:
            self._start()
        elif self._once is None:
            self._once = self._resident() - self._bare
        else:
            holes = self._resident() - self._bare - self._once
            if holes > min(_OF_PASS * self._once, _OF_SAVED * saved_bytes):
                self._start()

    @property
    def is_large(self) -> bool:
        """Whether there is so much to save that the peak counts for more than time."""
        return self._rest is not None

    def note_saved(self, nbytes: int) -> None:
        """One more tensor of this pass has been encoded: a first pass may turn out to be large."""
        self._saved += nbytes
        if self._rest is None and self._saved >= ALWAYS_BYTES:
            self._measure(self._saved)
            self._saved = 0  # asked once in so many bytes, where nobody tells
        self.within_pass(nbytes)

    def within_pass(self, nbytes: int) -> None:
        """A tensor of this size has just been encoded or made again."""
        rest = self._rest  # another thread may be about to change it
        if rest is None or nbytes < LOOK_BYTES:
            return
        self._largest = max(self._largest, nbytes)
        # What was allocated and never written to is not there: holes are no fewer than this.
        holes = self._resident() - (self._allocated() or 0) - rest
        if holes > (self._most if self._largest < _APART_BYTES else self._least):
            self._given += holes
            self._trim()

    def rest(self) -> None:
        """No pass is to come for now."""
        if self._passes:
            self._trim()

    def _measure(self, saved_bytes: int) -> None:
        """A heap without holes tells what the process takes beside of it."""
        self._trim()
        allocated = self._allocated()
        self._rest = None if allocated is None else self._resident() - allocated
        self._pace(saved_bytes)

    def _pace(self, saved_bytes: int) -> None:
        """How large holes may become, by what the last pass has given back."""
        given, self._given = self._given / saved_bytes, 0
        if given > _GIVEN:
            self._part = min(1.5 * self._part, _MOST)
        elif given < _GIVEN / 2:
            self._part = max(self._part / 1.5, _LEAST)
        self._most, self._least = int(self._part * saved_bytes), int(_LEAST * saved_bytes)

    def _start(self) -> None:
        self._trim()
        self._bare, self._once = self._resident(), None
