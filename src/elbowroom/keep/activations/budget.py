"""Meeting a budget of memory: what is kept, encoded, put on disk and computed again."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from elbowroom.errors import BudgetUnreachable
from elbowroom.host import trim_heap
from elbowroom.keep.activations.arrangement import (
    Arrangement,
    arrange,
    cost_s,
    lowest,
    state,
)
from elbowroom.keep.activations.gauge import Lean, Watch, device_of, watch_of
from elbowroom.keep.activations.ledger import say_bytes
from elbowroom.keep.activations.payloads import Coded, Payload, offload
from elbowroom.keep.activations.recompute import candidates
from elbowroom.keep.activations.shelf import Shelf
from elbowroom.keep.activations.sites import Form, Site
from elbowroom.keep.activations.timeline import Timeline

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry

_log = logging.getLogger("elbowroom")

# Left free: the next batch may differ a little from those that were measured.
MARGIN = 0.03

# Where memory fills up beyond this share of the budget, nothing more is kept and what is encoded
# goes to disk, whatever was planned: shapes may have changed, and of the first pass nothing is
# known.
_BRIM = 0.9

# Of that pass it is known from the largest tensor so far what backward will need to work with, at
# least: the layer's input as it was, the gradient of what it gave and that of its input.
_WORK = 3

# Of the budget, left free for what comes into being in the first steps.
_SETTLING = 0.05

# An arrangement that takes more than this share of the present one's time is not worth a change.
_WORTH = 0.97

# Bytes of peak for a byte that is kept on top, as long as nothing else was seen: heaps have holes.
_IN_HEAP, _IN_ARENA = 1.15, 1.02

# Passes above the budget in a row, after which it is given up.
_PATIENCE = 2

# More than was measured at most: the next run differs a little.
_SPARE = 1.02


class Budget:
    """Watches the course of memory from pass to pass, and arranges what is held to stay below."""

    def __init__(self, model: nn.Module, limit_bytes: int, report: Callable[[str], None]) -> None:
        self._gauge: Watch = watch_of(device_of(model), int((1 - MARGIN) * limit_bytes))
        self._modules = candidates(model)
        self._limit = self.limit_bytes = limit_bytes
        self._report = report
        self._passes = 0
        self._largest = 0
        self._failures = 0
        self._profile: Timeline | None = None
        # Lazy ones have no size before the first pass.
        self._weights = [p for p in model.parameters() if p.requires_grad]
        self._is_lent = False
        self._growth = _IN_ARENA if isinstance(self._gauge, Lean) else _IN_HEAP
        self._surprise = 0  # bytes that the last arrangement took on top of what was expected
        self.timeline: Timeline | None = None
        """Of the present pass, where it is recorded."""

        self.shelf = Shelf()
        self.arrangement = Arrangement()
        self.peak_bytes = 0
        self._most_bytes = 0  # of all passes
        self._before_bytes = self._gauge.now()
        if self._before_bytes > limit_bytes:
            raise BudgetUnreachable(
                f"the process holds {say_bytes(self._before_bytes)} before the first step, more "
                f"than the budget of {say_bytes(limit_bytes)}: raise it well above that, since "
                "no arrangement of activations changes what is there before"
            )
        self._gauge.reset()

    @property
    def modules(self) -> list[nn.Module]:
        """Those that run again in backward."""
        return [self._modules[name] for name in self.arrangement.regions]

    def offload(self, entry: "Entry", tensor: Tensor) -> Payload | None:
        """On disk, encoded where it is; what it had before where that cannot be."""
        found = entry.payload
        if not (found is None or isinstance(found, Coded)):
            return found
        if found is not None:
            entry.site.coded_bytes, entry.site.plain_bytes = found.nbytes, entry.nbytes_plain
        return offload(self.shelf, tensor, found) or found

    def form_of(self, site: Site, plain_bytes: int) -> Form:
        """What to do with a tensor of this place, now."""
        form = self.arrangement.forms.get(site, Form.ENCODE)
        if form is Form.OFFLOAD:
            return form
        now = self._gauge.now()
        if self._passes <= 1:
            self._largest = max(self._largest, plain_bytes)
            if now > min(_BRIM * self._limit, self._limit - _WORK * self._largest):
                return Form.OFFLOAD
        if form is Form.KEEP and now + plain_bytes - site.plain_bytes > self._limit:
            return Form.ENCODE
        return form

    def lend(self, nbytes: int) -> bool:
        """Whether so much more can be taken now for a while, until `take_back`."""
        if self.timeline is not None:
            self.timeline.lap()
        self._is_lent = self._gauge.now() + nbytes <= (1 - MARGIN) * self._limit
        return self._is_lent

    def rest(self) -> None:
        """No pass is to come for now."""
        self._gauge.rest()

    def take_back(self) -> None:
        """What was lent is free again, and says nothing about other passes."""
        if self._is_lent:
            self._is_lent = False
            trim_heap()
            self._gauge.reset()

    def next_pass(self, seconds: dict[str, float], *, is_watched: bool) -> None:
        """The last pass is over: compare its peak with the budget, and arrange the next.

        Args:
            seconds: Of the forwards of modules, in the last pass.
            is_watched: Whether gradients are looked at in the next pass, which takes more memory
                than others. Those passes are the measure.
        """
        self._gauge.wake()
        if self._passes > 0:
            is_fresh = self._close()
            if is_fresh or self.peak_bytes > self._limit:
                self._plan(seconds)
        self._passes += 1
        self.timeline = None
        if is_watched or self._failures > 0 or self._profile is None:
            self.timeline = Timeline(self._gauge)
            self._gauge.start()

    def _close(self) -> bool:
        """Take what was measured of the last pass; whether its whole course is known."""
        timeline, self.timeline = self.timeline, None
        if timeline is None:
            self.peak_bytes = self._gauge.peak()
        else:
            timeline.lap()
            self.peak_bytes = timeline.peak_bytes
        self._gauge.stop()
        self._gauge.reset()
        self._most_bytes = max(self._most_bytes, self.peak_bytes)
        if timeline is not None and timeline.holdings and not self.arrangement.regions:
            # Where regions run again, what they hold is not seen: the last full course stays.
            self._profile, self._surprise = timeline, 0
            return True
        if self.arrangement.peak_bytes:
            self._surprise = max(self._surprise, self.peak_bytes - self.arrangement.peak_bytes)
        return False

    def _plan(self, seconds: dict[str, float]) -> None:
        is_over = self.peak_bytes > self._limit
        self._failures = self._failures + 1 if is_over else 0
        if self._failures >= _PATIENCE:
            self._give_up()
        if self._profile is None:
            return
        if is_over and self.arrangement.count(Form.KEEP):
            self._growth *= 1.2
        problem = state(
            self._profile,
            {name: seconds[name] for name in self._modules if name in seconds},
            growth=self._growth,
            bytes_per_s=None if self.shelf.trouble else self.shelf.bytes_per_s,
        )
        # Libraries make some of their own in the first steps, too.
        to_come = self._to_come_bytes() + _SETTLING * self._limit if self._passes == 1 else 0
        limit = self._limit * (1 - MARGIN) - self._surprise - to_come
        found = arrange(problem, limit)
        if found is None:
            if is_over:
                self._give_up()
            if self._passes > 1:
                # It is within the budget as it is, though not by much. The first pass was as full
                # as it happened to be, which is no arrangement.
                return
            found = lowest(problem)
        is_fine = self.peak_bytes <= limit and self._passes > 1
        if is_fine and found.seconds >= _WORTH * cost_s(problem, self.arrangement):
            return
        self._say(found, len(problem.choices))
        self.arrangement = found

    def _say(self, found: Arrangement, count: int) -> None:
        kept, offloaded = found.count(Form.KEEP), found.count(Form.OFFLOAD)
        self._report(
            f"budget {say_bytes(self._limit)}, peak {say_bytes(self.peak_bytes)}: of {count} "
            f"tensors of which there is a choice {kept} are kept as they are, {offloaded} put on "
            f"disk and {count - kept - offloaded} encoded; {len(found.regions)} regions run again"
        )

    def _give_up(self) -> None:
        """Refuse, with a figure that the steps so far have kept to.

        A prediction of the least peak may be off by a tenth either way; these were measured.
        """
        most_bytes = self._most_bytes
        if self._passes == 1:
            most_bytes += self._to_come_bytes()
        raise BudgetUnreachable(
            f"the budget of {say_bytes(self._limit)} cannot be met: with everything encoded, put "
            "on disk or computed again that can be, the steps so far took up to "
            f"{say_bytes(self._most_bytes)}, and {say_bytes(self._before_bytes)} of it were there "
            f"before the first one: raise the budget to {say_bytes(int(_SPARE * most_bytes))} or "
            "more, make the batch smaller, or hold less beside the model"
        )

    def _to_come_bytes(self) -> int:
        """An optimizer makes its state in the first step, often two numbers a weight."""
        return sum(2 * p.numel() * p.element_size() for p in self._weights)
