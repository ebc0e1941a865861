"""What the meter's readings do to bounds: the closed forms are corrected, or all bounds tighten."""

import math
from collections.abc import Callable
from statistics import median

from torch import nn

from elbowroom.keep.activations.ledger import Reading
from elbowroom.keep.activations.noise import Noise
from elbowroom.keep.activations.rules import Decision, Rule
from elbowroom.keep.activations.sites import Site, Sites
from elbowroom.keep.activations.tally import Tally


class Trust:
    """The only writer of bounds and of the errors that are predicted for them."""

    def __init__(
        self,
        model: nn.Module,
        sites: Sites,
        noise: Noise,
        rule: Rule,
        tolerance: float,
        warn: Callable[[str], None],
    ) -> None:
        self._model, self._sites, self._noise = model, sites, noise
        self._rule, self._tolerance, self._warn = rule, tolerance, warn
        self._ratios: list[float] = []
        self.factor = 1.0
        """By which the closed forms are multiplied."""

        self.readings: list[Reading] = []

    def take(self, decisions: list[Decision]) -> None:
        """New bounds."""
        for decision in decisions:
            site = decision.site
            site.bound = decision.bound
            site.share, site.part_share = decision.share, decision.part_share

    def report(self, step: int, tally: Tally, error: float, part: float) -> None:
        """The meter has measured: the squared error of the gradient of a part of the batch.

        The part is that of the squared gradients of the outputs.
        """
        variance = sum(self._noise.variance(p) or 0.0 for p in self._model.parameters())
        # Bounds may have been renewed at the end of this very pass.
        names = {row.name for row in tally.rows if row.bound > 0}
        sites = [site for site in self._sites if site.name in names and site.bound is not None]
        predicted, of_part = sum(s.share for s in sites), sum(s.part_share for s in sites)
        if not (min(variance, predicted, of_part) > 0 and 0 < error < math.inf):
            return
        # Normalised over a part of the batch, errors are other ones: this is what it tells of all.
        measured = error / (variance * part) * (predicted / of_part if part < 1 else 1.0)
        self.readings.append(Reading(step=step, predicted=predicted, measured=measured))
        is_above = self._rule is Rule.VARIANCE and measured > self._tolerance
        self._ratios = [*self._ratios[-4:], measured * self.factor / predicted]
        # A part of one batch is a sample, now without what is rare and large, now with it: several
        # have to agree before the closed forms are corrected; an error above the tolerance is
        # believed by half.
        factor = median([1.0, 1.0, *self._ratios])
        if is_above:
            factor = max(factor, (factor * self._ratios[-1]) ** 0.5)
        factor = min(64.0, max(0.5, factor))
        for site in sites:
            _scale_share(site, factor / self.factor)
        self.factor = factor
        if is_above:
            self._tighten(measured)

    def _tighten(self, measured: float) -> None:
        share = self._tolerance / measured
        for site in self._sites:
            if site.bound is not None:
                site.bound *= share**0.5
                _scale_share(site, share)
        self._warn(
            f"the gradient's error was {measured:.3g} of its variance, above the tolerance of "
            f"{self._tolerance:.3g}: bounds are now {100 * share**0.5:.0f} % of what they were"
        )


def _scale_share(site: Site, factor: float) -> None:
    site.share *= factor
    site.part_share *= factor
