"""What encoding a history does to gradients: a window of steps, run exactly and run encoded."""

import math
import random as draws
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from elbowroom.keep.loops.body import Body, Grads, Tensors
from elbowroom.keep.loops.functions import Engine
from elbowroom.keep.surroundings import random_state, set_random_state

# Steps of a window: long enough for interpolation to get going.
WINDOW = 32

# Far below the tolerance the bound may grow, and above it the bound must shrink; more slowly up.
_GROW, _SHRINK = 1.5, 0.25
_AIM = 0.7

# The largest bound, of the tolerance and at all: gradients of waves are off by as much as their
# history is.
_MOST, _LARGEST = 4.0, 0.5


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A window that was measured."""

    start: int
    steps: int
    error: float
    """Of the gradient, relative to its norm."""

    relative: float
    """The bound that caused it."""


class Window(Body):
    """The steps of a loop from one of them on."""

    def __init__(self, inner: Body, start: int) -> None:
        vars(self).update(vars(inner))
        self.known, self.prints = None, None
        self._inner, self._start = inner, start

    def run(self, state: Tensors, slices: Tensors, number: int) -> tuple[Tensors, Tensors]:
        """Make a step, which has another number in the whole."""
        return self._inner.run(state, slices, self._start + number)


class Probe:
    """Chooses a window, catches what passes through it, and runs it again both ways."""

    def __init__(self, seed: int = 0) -> None:
        self._draw = draws.Random(seed)
        self.start = self.steps = 0
        self._state: Tensors = []
        self._grads: Grads = []

    def arm(self, length: int | None) -> None:
        """Choose a window in a loop of that length."""
        self.steps = 0 if length is None else min(WINDOW, length)
        self.start = self._draw.randrange(length - self.steps + 1) if length else 0
        self._state, self._grads = [], []

    def look(self, number: int, state: Tensors) -> None:
        """The state before a step, taped."""
        if not self.steps:
            return
        if number == self.start:
            self._state = [t.detach().clone() for t in state]
        if number == self.start + self.steps:
            self._grads = [None] * len(state)
            for place, tensor in enumerate(state):
                if tensor.requires_grad:
                    tensor.register_hook(lambda grad, place=place: self._catch(place, grad))

    def _catch(self, place: int, grad: Tensor) -> None:
        self._grads[place] = grad.detach().clone()

    def measure(
        self,
        body: Body,
        exact: Callable[[Body, int], Engine],
        lossy: Callable[[Body, int], Engine],
        inputs: Tensors,
        output_grads: Grads,
        parameters: Tensors,
    ) -> float | None:
        """The relative error of the window's gradient; None where nothing has come through."""
        if not self._state or all(g is None for g in self._grads):
            return None
        window = slice(self.start, self.start + self.steps)
        pieces = [x[window] for x in inputs]
        weights = [None if g is None else g[window] for g in output_grads]
        found, random = [], random_state()
        for make in (exact, lossy):
            set_random_state(random)
            engine = make(Window(body, self.start), self.steps)
            engine.forward(self._state, pieces, parameters)
            first, _, sums = engine.backward(
                self._state, pieces, parameters, list(self._grads), list(weights)
            )
            # That of the state is what comes through anyway, and would hide the others.
            some = [g for g in sums if g is not None]
            found.append(some or [g for g in first if g is not None])
        self._state, self._grads = [], []
        return relative_error(*found)


def relative_error(exact: Tensors, other: Tensors) -> float:
    """Of one gradient in many tensors."""
    pairs = list(zip(exact, other, strict=True))
    off = sum(float((a - b).abs().double().square().sum()) for a, b in pairs)
    size = sum(float(a.abs().double().square().sum()) for a, _ in pairs)
    return (off / size) ** 0.5 if size else 0.0


def feed(relative: float, error: float, tolerance: float) -> float:
    """The bound for the next loop, after what this one's window has shown.

    A gradient that is not finite shows nothing. One that the history does not reach shows no error
    at all, and another may come: so there is an end to growing.
    """
    if not math.isfinite(error):
        return relative
    factor = _GROW if error == 0 else min(_GROW, max(_SHRINK, _AIM * tolerance / error))
    return min(relative * factor, _MOST * tolerance, _LARGEST)
