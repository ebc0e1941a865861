"""In which passes the gradients are looked at, and in which the meter runs: never in the same."""

import time
from collections.abc import Callable
from statistics import median

# Of a usual step: what the meter may take. Twice in a row more, and it has few turns.
_MAY_TAKE = 0.25


class Clock:
    """How long usual steps take, and whether the meter takes long beside them."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._since: float | None = None
        self._steps: list[float] = []
        self._dear = 0

    @property
    def is_dear(self) -> bool:
        """Whether the meter has taken too long twice in a row."""
        return self._dear > 1

    def begin_pass(self, *, has_look: bool) -> None:
        """The last step is over, if it was a usual one: one without a look."""
        now = self._now()
        if self._since is not None:
            self._steps = [*self._steps[-4:], now - self._since]
        self._since = None if has_look else now

    def begin_meter(self) -> Callable[[], None]:
        """Returns what to call when the meter has run."""
        start, self._since = self._now(), None

        def end() -> None:
            usual = median(self._steps) if self._steps else 0.0
            is_dear = self._now() - start > _MAY_TAKE * usual
            self._dear = self._dear + 1 if is_dear else 0

        return end


def is_due(step: int, every: int) -> bool:
    """A look at 2, 4, 8, 16 and so on until the period is reached, then once a period.

    Gradients change fastest at the beginning. The first pass has enough to do: it is also the one
    in which torch and its libraries set themselves up.
    """
    if step >= every:
        return step % every == 0
    return step > 1 and step & (step - 1) == 0


def is_metered(step: int, every: int) -> bool:
    """The meter's turn: one pass after such a look, at 5, 9, 17, 33 and so on.

    Before the fifth pass there is hardly a prediction to compare with.
    """
    return step > min(4, every + 1) and is_due(step - 1, every)


def is_rare(step: int, every: int) -> bool:
    """Its turn where it has to run a whole batch: at 17, 33, 65 and so on, then once a period."""
    before = step - 1
    is_power = before & -before == before
    return before >= min(16, every) and (is_power if before < every else before % every == 0)
