"""The gradient's own noise: how much it varies from batch to batch.

Of every parameter a few thousand fixed coordinates are followed; their variance stands for the
whole. Gradients shrink while a model learns, so that their size is followed on its own, and faster
than their pattern: the variance is the pattern's times the present size.

An optimizer that follows both moments of every element, as Adam does, knows the pattern better:
all coordinates, also those of the steps before a run was resumed. Its second moment is an average
of a thousand steps, so that the present size is followed here all the same. That also brings the
moments to the scale of the gradients that are seen in backward, which loss scaling and
accumulation change.

Both count as noise what is none: while a model learns fast its mean gradient moves, sometimes by
far more than batches differ. Half of the squared difference of two gradients in a row has the same
expectation and sees one step of that movement only (von Neumann 1941); but directions in which
steps overshoot come out larger in it. A sixth of the squared second difference, of three in a row,
sees nothing of a movement that goes straight on. Each counts where it is clearly smaller. The parts
of one batch see no movement at all (`portions`). A parameter of which they are not known is
corrected as its neighbours are on average.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from elbowroom.keep.activations.coordinates import Coordinates, coordinates_of
from elbowroom.keep.activations.moments import Moment, Moments
from elbowroom.keep.activations.untouched import is_batched

COORDINATES = 2048
DECAY = 0.9
SIZE_DECAY = 0.6
# Below, too few gradients have been seen to tell their variance from their mean: three of them are
# enough.
LEAST_SHARE = 0.6
# Differences of ten gradients tell the variance to a third or so.
CLEARLY = 0.7


# Of the shares that parts of batches have shown, the newest counts as much as this.
NEWEST = 0.5
# Below this share of the running estimate they show that the rest of it is the mean's movement.
APART = 0.5


@dataclass(slots=True)
class _Track:
    index: Tensor | None
    scale: float
    count: int
    """Of real numbers in the gradient."""

    mean: Tensor | None = None
    square: Tensor | None = None
    weight: float = 0.0
    weight_squared: float = 0.0
    size: float = 0.0
    size_weight: float = 0.0
    last: float = 0.0
    step: int = 0
    before: Tensor | None = None
    change: float = 0.0
    change_weight: float = 0.0
    moved: Tensor | None = None
    """By the last difference of two gradients in a row."""

    last_but_one: float = 0.0
    bend: float = 0.0
    bend_weight: float = 0.0
    share: float = 0.0
    """Of the squared gradient that parts of batches say to be noise; 0 where they are unknown."""

    places: Coordinates | None = None

    def take(self, gradient: Tensor) -> Tensor:
        """What is followed of it. A matrix's gradient often lies in columns: it is not copied."""
        if self.index is None:
            return gradient.reshape(-1)
        if gradient.is_contiguous():
            return gradient.view(-1)[self.index]
        if self.places is None:
            self.places = coordinates_of(self.index, tuple(gradient.shape))
        return gradient[self.places]

    @property
    def energy(self) -> float:
        """The present squared norm."""
        return self.count * self.size / self.size_weight if self.size_weight else 0.0


class Noise:
    """Running estimates of the sampling variance of each parameter's gradient."""

    def __init__(self, moments: Moments | None = None) -> None:
        self._tracks: dict[int, _Track] = {}
        self._moments = moments
        self._known: dict[int, tuple[Any, float]] = {}
        self._marked = 0.0
        self._usual = 1.0

    def note_portions(
        self, parameters: Iterable[nn.Parameter], shares: Mapping[int, float]
    ) -> None:
        """What parts of the last batch say: each parameter's variance over its squared norm."""
        estimates = expected = 0.0
        for parameter in parameters:
            track, share = self._tracks.get(id(parameter)), shares.get(id(parameter))
            if track is None or share is None or not track.size > 0:
                continue
            # Of the size that is followed, not of this one gradient's.
            share *= track.last * track.size_weight / track.size
            old = track.share or share
            track.share = NEWEST * share + (1 - NEWEST) * old
            running = self._running(parameter)
            if running is not None:
                expected += running
                estimates += min(running, track.share * track.energy)
        self._usual = estimates / expected if expected > 0 else 1.0

    def observe(self, parameter: nn.Parameter, gradient: Tensor, step: int) -> None:
        """One more gradient of one batch; of later steps only some, and no sparse ones."""
        if (step > 32 and step % 8 > 2) or is_batched(gradient):
            return
        if gradient.layout != torch.strided:
            return
        gradient = gradient.detach()
        gradient = torch.view_as_real(gradient) if gradient.is_complex() else gradient
        track = self._tracks.get(id(parameter))
        if track is None:
            track = self._tracks[id(parameter)] = _start(gradient)
        values = track.take(gradient).to(torch.float32)
        size = _squared(values) / max(1, values.numel())
        if not 0 < size < float("inf"):
            return
        track.size = track.size * SIZE_DECAY + size * (1 - SIZE_DECAY)
        track.size_weight = track.size_weight * SIZE_DECAY + 1 - SIZE_DECAY
        if track.before is not None and step == track.step + 1:
            moved = values - track.before
            change = _squared(moved) / (size + track.last)
            track.change = track.change * DECAY + change * (1 - DECAY)
            track.change_weight = track.change_weight * DECAY + 1 - DECAY
            if track.moved is not None:
                bend = _squared(moved - track.moved)
                bend /= size + 4 * track.last + track.last_but_one
                track.bend = track.bend * DECAY + bend * (1 - DECAY)
                track.bend_weight = track.bend_weight * DECAY + 1 - DECAY
            track.moved, track.last_but_one = moved, track.last
        else:
            track.moved = None
        track.before = values.clone() if track.index is None else values
        track.last, track.step = size, step
        if self._moments is not None and self._moments.has(parameter):
            return
        if track.mean is None or track.square is None:
            track.mean, track.square = torch.zeros_like(values), torch.zeros_like(values)
        values = values / size**0.5
        keep = 1 - DECAY
        track.mean.mul_(DECAY).add_(values, alpha=keep)
        track.square.mul_(DECAY).add_(values.square(), alpha=keep)
        track.weight = track.weight * DECAY + keep
        track.weight_squared = track.weight_squared * DECAY**2 + keep**2

    def variance(self, parameter: nn.Parameter) -> float | None:
        """Sum over the parameter's elements; None before three gradients have been seen."""
        track, running = self._tracks.get(id(parameter)), self._running(parameter)
        if track is None or running is None:
            return running
        found = track.share * track.energy if track.share else self._usual * running
        if found > running / APART:
            # Samples have to do with one another, as before a BatchNorm: what is in its parts
            # cancels in a batch.
            return running
        # Two estimates of the same, unless one of them has taken movement for noise.
        return found if found < APART * running else (found * running) ** 0.5

    def _running(self, parameter: nn.Parameter) -> float | None:
        track = self._tracks.get(id(parameter))
        known = self._by_moments(parameter, track)
        if known is not None:
            return known if track is None else _still(known, track)
        if track is None or track.mean is None or track.square is None:
            return None
        weight = track.weight
        if not weight or not track.size_weight:
            return None  # another thread is at its first gradient
        # Reliability weights: what a weighted mean of few values leaves out of their variance.
        share = 1 - track.weight_squared / weight**2
        if share < LEAST_SHARE:
            return None
        spread = (track.square / weight - (track.mean / weight).square()).clamp_min(0)
        size = track.size / track.size_weight
        return _still(float(spread.sum()) * track.scale / share * size, track)

    def _by_moments(self, parameter: nn.Parameter, track: _Track | None) -> float | None:
        """Asked several times in a look, and read once."""
        steps = 0.0 if self._moments is None else self._moments.steps(parameter)
        if not steps:
            return None
        now = (steps, track and (track.step, track.size))
        before = self._known.get(id(parameter))
        if before is not None and before[0] == now:
            return before[1]
        moment = self._moment(parameter)
        if moment is None or moment.share < LEAST_SHARE:
            return None
        spread = (moment.square - moment.mean.square()).clamp_min(0)
        found = float(spread.sum()) * moment.scale / moment.share * _growth(track, moment)
        self._known[id(parameter)] = now, found
        return found

    def mark(self) -> None:
        """Bounds follow from the present variance."""
        self._marked = self._differences()

    def has_calmed(self, step: int) -> bool:
        """Whether the variance is less than half of what was marked; looks every fourth step."""
        return step % 4 == 0 and self._differences() < self._marked / 2

    def _differences(self) -> float:
        # Numbers that are there: a look at the moments would read the whole optimizer.
        return sum(
            _difference(track) for track in list(self._tracks.values()) if track.change_weight
        )

    def momentum(self, parameter: nn.Parameter) -> float:
        """Mean magnitude of the running mean: what a momentum buffer would hold."""
        track = self._tracks.get(id(parameter))
        moment = self._moment(parameter)
        if moment is not None:
            return float(moment.mean.abs().mean()) * _growth(track, moment) ** 0.5
        if track is None or track.mean is None or not track.weight or not track.size_weight:
            return 0.0
        size = track.size / track.size_weight
        return float(track.mean.abs().mean()) / track.weight * size**0.5

    def size(self, parameter: nn.Parameter) -> float:
        """Root mean square of an element of the gradient."""
        track = self._tracks.get(id(parameter))
        if track is None or not track.size_weight:
            return 0.0
        return (track.size / track.size_weight) ** 0.5

    def lull(self, parameters: Iterable[nn.Parameter]) -> float:
        """How many times smaller the last gradient was than the present average, in square."""
        usual = last = 0.0
        for parameter in parameters:
            track = self._tracks.get(id(parameter))
            if track is not None and track.size_weight:
                usual += track.energy
                last += track.count * track.last
        return usual / last if last > 0 else 1.0

    def _moment(self, parameter: nn.Parameter) -> Moment | None:
        return None if self._moments is None else self._moments.of(parameter)


def _difference(track: _Track) -> float:
    """Half of the mean squared difference of gradients in a row, at their present size."""
    mean = track.change / track.change_weight
    return mean * track.scale * track.size / track.size_weight


def _still(variance: float, track: _Track) -> float:
    """The variance without the mean's movement."""
    if track.change_weight:
        still = _difference(track)
        variance = still if still < CLEARLY * variance else variance
    if track.bend_weight:
        still = track.bend / track.bend_weight * track.scale * track.size / track.size_weight
        variance = still if still < CLEARLY * variance else variance
    return variance


def _growth(track: _Track | None, moment: Moment) -> float:
    """The present mean square of the gradient over that which the optimizer remembers."""
    if track is None or not track.size_weight:
        return 1.0
    remembered = moment.usual(track.index)
    return track.size / track.size_weight / remembered if remembered > 0 else 1.0


def _squared(values: Tensor) -> float:
    """Their squared norm, by one call."""
    return float(torch.dot(values, values))


def _start(gradient: Tensor) -> _Track:
    count = gradient.numel()
    if count <= COORDINATES:
        return _Track(None, 1.0, count)
    generator = torch.Generator().manual_seed(count)
    index = torch.randint(count, (COORDINATES,), generator=generator)
    return _Track(index.to(gradient.device), count / COORDINATES, count)
