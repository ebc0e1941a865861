"""Whether a difference saves room on the disk, given how many checkpoints stay.

What a difference builds on stays as long as it does. Of three checkpoints that stay, the oldest may
be the end of a chain, all of which stays with it; where each difference weighs more than half of
the state, whole states take less room than chains.
"""

from collections.abc import Callable

from elbowroom.store.checkpoint.contents import Held
from elbowroom.store.checkpoint.retention import Keep

# Differences that weigh next to nothing save writing, which counts more than what they add.
_LITTLE = 0.25

Allows = Callable[[Held, float], bool]  # a base, and the share that a difference to it would weigh


def allows_chains(keep: Keep, state_share: float | None) -> Allows:
    """Which differences to make, so that what stays takes no more than as many whole states.

    `state_share` is what differences for the whole state would have weighed last time: files go
    when nothing in them is needed, so that tensors begin their chains together or not at all.
    """

    def allows(base: Held, share: float) -> bool:
        share = share if state_share is None else state_share
        if keep.last is None or share <= _LITTLE:
            return True
        # Of what stays every so many steps, each would keep a chain of its own.
        return keep.every is None and most_states(keep.last, base.depth + 2, share) <= keep.last

    return allows


def most_states(last: int, length: int, share: float) -> float:
    """How many whole states the last checkpoints weigh at most, in chains of that length."""
    chain = 1 + (length - 1) * share
    chains, rest = divmod(last - 1, length)
    return chain * (1 + chains) + (1 + (rest - 1) * share if rest else 0)
