"""Whether the heap's holes are given back before a pass: memory against page faults.

Pages that are given back come again cleared, one fault each, which takes up to a fifth of a small
network's step; pages that stay add up to more than any one step has at once. Where much is saved,
plain training gets its memory from the kernel anew in every step too, and giving back costs nothing
by comparison. Where little is saved it is tried out: one pass from a heap without holes, some more
on top of it, and what they took beyond the first is what giving back would save.
"""

from collections.abc import Callable

from elbowroom.host import TRIM_FROM_BYTES, resident_bytes, trim_heap

# From here on glibc, left alone, has pages of their own for what a plain step saves.
ALWAYS_BYTES = 512 << 20

# Of what passes take on top of each other, the share that has to be saved.
WORTH = 1 / 3

# Passes before the first trial, in which bounds are being learned; on top of each other in a trial;
# and between two trials.
_LEARNED, _PILED, _HOLDS = 8, 4, 200


class Heap:
    """Asked before each pass; gives holes back where that is worth it."""

    def __init__(
        self, resident: Callable[[], int] | None = None, trim: Callable[[], None] = trim_heap
    ) -> None:
        self._resident, self._trim = resident or resident_bytes, trim
        self._passes = 0
        self._is_worth_it = True
        self._bare = self._once = 0

    def before_pass(self, saved_bytes: int) -> None:
        """The last pass would have saved so much plainly."""
        if saved_bytes <= TRIM_FROM_BYTES:
            return
        if saved_bytes >= ALWAYS_BYTES:
            self._trim()
            return
        place = self._passes - _LEARNED
        self._passes += 1
        if place < 0:
            self._trim()
        elif place == 0:
            self._trim()
            self._bare = self._resident()
        elif place == 1:
            self._once = self._resident() - self._bare
        elif place == 1 + _PILED:
            piled = self._resident() - self._bare
            self._is_worth_it = piled - self._once > WORTH * piled
            if self._is_worth_it:
                self._trim()
        elif place > 1 + _PILED:
            if self._is_worth_it:
                self._trim()
            if place >= _HOLDS:
                self._passes = _LEARNED
