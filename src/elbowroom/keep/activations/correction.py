"""Readings of the meter against what was predicted, and what follows for the bounds."""

import logging
import math
from collections.abc import Callable, Iterable
from statistics import median

from elbowroom.keep.activations.ledger import Reading
from elbowroom.keep.activations.meter import Measured
from elbowroom.keep.activations.sites import Site

_log = logging.getLogger("elbowroom")

# A single reading so many times above the tolerance is no accident of a few samples.
_FAR = 4.0
# The closed forms are corrected by so much at most.
_LEAST, _MOST = 0.5, 64.0


class Correction:
    """Follows the meter: corrects predictions, tightens bounds, and warns once of an excess."""

    def __init__(self, tolerance: float, tell: Callable[[str], None], *, is_tight: bool) -> None:
        """`is_tight` where bounds are to keep the tolerance as the meter reads it."""
        self._tolerance, self._tell, self._is_tight = tolerance, tell, is_tight
        self._ratios: list[float] = []
        self._excesses = 0
        self._has_warned = False
        self.trust = 1.0
        """How many times larger errors are than the closed forms say."""

        self.readings: list[Reading] = []

    def take(
        self, step: int, measured: Measured, variance: float, used: list[Site], every: list[Site]
    ) -> None:
        """A reading: of the sites with bounds in this pass, `used`, and among all of the model."""
        predicted, of_part = sum(s.share for s in used), sum(s.part_share for s in used)
        error = measured.error
        if not (min(variance, predicted, of_part) > 0 and 0 < error < math.inf):
            return
        # Normalised over a part of the batch, errors are other ones: this is what it tells of all.
        growth = predicted / of_part if measured.is_part else 1.0
        share = error / variance * growth
        self.readings.append(Reading(step=step, predicted=predicted, measured=share))
        is_above = self._is_tight and share > self._tolerance
        self._ratios = [*self._ratios[-4:], share * self.trust / predicted]
        # A part of one batch is a sample, now without what is rare and large, now with it: several
        # have to agree before the closed forms are corrected; an error above the tolerance is
        # believed by half.
        trust = median([1.0, 1.0, *self._ratios])
        if is_above:
            trust = max(trust, (trust * self._ratios[-1]) ** 0.5)
        trust = min(_MOST, max(_LEAST, trust))
        for site in used:
            site.share *= trust / self.trust
            site.part_share *= trust / self.trust
        self.trust = trust
        self._excesses = self._excesses + 1 if is_above else 0
        if is_above:
            self._tighten(share, every)
        else:
            self._has_warned = False

    def _tighten(self, measured: float, sites: Iterable[Site]) -> None:
        share = self._tolerance / measured
        for site in sites:
            if site.bound is not None:
                site.bound *= share**0.5
                site.share *= share
                site.part_share *= share
        is_sustained = self._excesses > 1 or measured > _FAR * self._tolerance
        if is_sustained and not self._has_warned:
            self._has_warned = True
            event = (
                f"errors were {measured:.3g} of the gradient's variance, above the tolerance of "
                f"{self._tolerance:.3g}: all bounds are now {share**-0.5:.1f} times tighter, and "
                "the next ones reckon with it"
            )
            self._tell(event)
            _log.warning(event)
