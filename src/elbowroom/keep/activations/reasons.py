"""Why a saved tensor is kept as it is, in words for people."""

from typing import TYPE_CHECKING

from elbowroom.keep.activations.needs import Need, class_of, need_of

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry
    from elbowroom.keep.activations.policy import Policy

YOURS = "passed in by the caller"
COPY = "copies of weights"
ODD = "no plain tensor"
CHANGED = "changed in place"
FAULT = "an error of ours, told beside"
ROOM = "the budget has room for it"
SLOW = "it would take more time than was granted"
UNREAD = "read by backward before it had another form"


def say_small(nbytes: int) -> str:
    """Of tensors below this size."""
    return f"small tensors (under {nbytes >> 10} kB)"


def reason_of(entry: "Entry", policy: "Policy", planned: str | None) -> str:
    """Of one that found no other form; planned, where the budget has it kept."""
    exact = [u for u in entry.uses if need_of(u.kind, u.slot) is Need.EXACT]
    if exact:
        return f"needed to the last bit ({exact[0].kind}.{exact[0].slot})"
    if planned is not None:
        return planned
    if entry.dtype.is_complex:
        return "complex values"
    if Need.BANDS in entry.needs or Need.WINDOW in entry.needs:
        return "read in two ways"
    if policy.is_exact:
        return "tolerance 0"
    if policy.is_local and class_of(entry.uses) != "W":
        return "errors would travel on"
    if not entry.bound > 0:
        return "no error can be spent on it"
    return "not worth the time"
