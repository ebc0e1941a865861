"""When to save: as often as the cap on overhead allows, the disk keeps up, and failures ask for.

Every step earns a credit, the cap's share of its undisturbed time; a checkpoint is taken when the
credit covers what one costs, and pays its true cost when that is known. So a machine that
becomes slower or faster, a disk that becomes busy and an estimate that was wrong are all made
up for, in both directions.
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import Any

from elbowroom.errors import InvalidArgument

_WARM_STEPS = 3  # the first steps allocate, compile and fill caches
_FEW_STEPS = 10  # the first checkpoint comes earlier than after more
_WINDOW = 11
_LEAST_ALONE = 2  # steps between the end of one save and the next
_MOST_DEBT = 4  # costs of a save, owed or to spare: what was long ago counts no more


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a checkpoint costs, in seconds: the loop stands still, steps beside it are slower."""

    stall_s: float
    slowdown_s: float
    persist_s: float

    @property
    def added_s(self) -> float:
        """To the loop's time."""
        return self.stall_s + self.slowdown_s


class Pace:
    """Decides after each step whether a checkpoint is due."""

    def __init__(
        self,
        *,
        max_overhead: float = 0.035,
        every: int | None = None,
        mean_time_between_failures_s: float | None = None,
    ) -> None:
        if not _is_number(max_overhead) or not 0 < max_overhead < 1:
            raise InvalidArgument(
                f"max_overhead must be a share between 0 and 1, got {max_overhead!r}"
            )
        if every is not None and (not isinstance(every, int) or every < 1):
            raise InvalidArgument(f"every must be a number of steps from 1 on, got {every!r}")
        mtbf = mean_time_between_failures_s
        if mtbf is not None and (not _is_number(mtbf) or not 0 < mtbf < math.inf):
            raise InvalidArgument(
                "mean_time_between_failures_s must be more than 0 seconds and less than forever, "
                f"got {mtbf!r}"
            )
        self._cap, self._every, self._mtbf_s = max_overhead, every, mtbf
        self._steps: deque[float] = deque(maxlen=_WINDOW)
        self._credit_s = 0.0
        self._since_save = 0
        self._since_save_s = 0.0
        self._seen = 0
        self._disturbed_s = 0.0
        self._unpaid_s = 0.0
        self._undisturbed = 0
        self._is_busy = False
        self._costs: Costs | None = None
        self._is_first = True
        self._told: int | None = None

    @property
    def step_s(self) -> float:
        """A step beside which nothing is saved."""
        return statistics.median(self._steps) if self._steps else 0.0

    @property
    def costs(self) -> Costs | None:
        """Of one checkpoint, as far as known."""
        return self._costs

    def step(self, seconds: float | None, *, is_disturbed: bool) -> None:
        """A step has taken so long; a checkpoint was being written beside a disturbed one."""
        self._seen += 1
        self._since_save += 1
        self._is_busy = is_disturbed
        if self._seen <= _WARM_STEPS or seconds is None:
            return
        alone_s = self.step_s
        if is_disturbed and self._steps:
            self._disturbed_s += seconds - alone_s
            self._credit_s -= seconds - alone_s
        else:
            self._steps.append(seconds)
            self._undisturbed += 1
            # A single slow step is not worth more than others.
            alone_s = min(seconds, 4 * self.step_s)
        self._since_save_s += alone_s
        self._credit_s += self._cap * alone_s

    def goes_on(self) -> None:
        """There are checkpoints already."""
        self._is_first = False

    def stalled(self, seconds: float) -> None:
        """A checkpoint was begun, for which the loop stood still so long."""
        # The one that comes early does not move those that were asked for.
        is_early = self._every is not None and self._is_first and self._since_save < self._every
        self._since_save = self._since_save if is_early else 0
        self._is_first = False
        self._since_save_s = 0.0
        self._disturbed_s = 0.0
        self._unpaid_s = seconds
        self._credit_s -= seconds

    def persisted(self, seconds: float) -> Costs:
        """It is on disk: its costs are known."""
        # That steps beside it were faster is chance, or a machine that has become faster.
        self._credit_s += min(self._disturbed_s, 0.0)
        self._undisturbed = 0
        now = Costs(
            stall_s=self._unpaid_s, slowdown_s=max(self._disturbed_s, 0.0), persist_s=seconds
        )
        old = self._costs or now
        self._costs = Costs(
            stall_s=(old.stall_s + now.stall_s) / 2,
            slowdown_s=(old.slowdown_s + now.slowdown_s) / 2,
            persist_s=(old.persist_s + now.persist_s) / 2,
        )
        most_s = _MOST_DEBT * self._costs.added_s
        self._credit_s = min(max(self._credit_s, -most_s), most_s)
        return now

    def is_due(self) -> bool:
        """Whether to save now."""
        if self._every is not None:
            # One comes early: who is killed before so many steps is glad of it.
            is_early = self._is_first and self._every >= _FEW_STEPS
            return self._since_save >= (_WARM_STEPS if is_early else self._every)
        if self._costs is None:
            # The first one comes early: it is worth having, and shows what one costs. Until that
            # is known there is no second, unless the first has failed.
            is_time = self._seen > _WARM_STEPS and self._since_save >= _WARM_STEPS
            return is_time and not self._is_busy
        if self._undisturbed < _LEAST_ALONE:
            return False  # else nobody would know what a step takes by itself
        # What was earned and not spent is no reason for several at once.
        apart_s = max(self._costs.added_s / self._cap, self._costs.persist_s) / 2
        apart_s = max(apart_s, self._failures_s())
        return self._credit_s >= self._costs.added_s and self._since_save_s >= apart_s

    def interval(self) -> int:
        """Steps between two checkpoints, as things are."""
        if self._every is not None:
            return self._every
        if self._costs is None or not self.step_s:
            return _WARM_STEPS
        wanted_s = max(self._costs.added_s / self._cap, self._costs.persist_s, self._failures_s())
        return max(1, math.ceil(wanted_s / self.step_s))

    def _failures_s(self) -> float:
        """Young's interval, at which saving costs as much as the work that failures lose."""
        if self._mtbf_s is None or self._costs is None:
            return 0.0
        return math.sqrt(2 * self._costs.added_s * self._mtbf_s)

    def explain(self) -> str:
        """In one sentence."""
        if self._every is not None:
            return f"a checkpoint at most every {self._every} steps, as asked for"
        if self._costs is None:
            return "the first checkpoint will show what one costs"
        costs = self._costs
        reasons = {
            costs.added_s / self._cap: f"so that saving takes {self._cap:.1%} of the time",
            costs.persist_s: "which is what the disk can take",
            self._failures_s(): f"the best for a failure every {self._mtbf_s or 0:.4g} s (Young)",
        }
        return (
            f"a checkpoint about every {_say(self.interval())} steps: a step takes "
            f"{self.step_s:.3g} s, a checkpoint stops the loop for {costs.stall_s:.3g} s, slows "
            f"the steps beside it by {costs.slowdown_s:.3g} s and is on disk after "
            f"{costs.persist_s:.3g} s; {reasons[max(reasons)]}"
        )

    def news(self) -> str | None:
        """The same, when it is known and not nearly what was told last."""
        if self._every is not None or self._costs is None:
            return None
        now = self.interval()
        if self._told is not None and self._told <= 2 * now and now <= 2 * self._told:
            return None
        self._told = now
        return self.explain()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _say(count: int) -> str:
    return str(count) if count < 10**9 else f"{count:.0e}"
