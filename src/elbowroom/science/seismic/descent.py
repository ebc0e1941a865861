"""Ways down: L-BFGS and Newton with conjugate gradients, within bounds, with one line search."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Of the decrease that the gradient promises, what a step has to keep (Armijo). More than the usual
# 1e-4: a step that keeps next to nothing has gone far beyond the bottom, it teaches L-BFGS little,
# and whether it is taken hangs on the last digits of the gradient.
_ARMIJO = 0.1
_TRIES = 12

Score = Callable[[Tensor], tuple[float, Tensor]]
"""The value and its gradient at a point."""

Product = Callable[[Tensor], Tensor]
"""A symmetric matrix times a direction."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """Where a point may lie; where low and high are equal, it is fixed."""

    low: Tensor
    high: Tensor

    def clamp(self, x: Tensor) -> Tensor:
        """The nearest point inside."""
        return torch.minimum(torch.maximum(x, self.low), self.high)

    def free(self, x: Tensor, gradient: Tensor) -> Tensor:
        """One where a step downhill stays inside, else zero (the projected gradient's set)."""
        is_held = ((x <= self.low) & (gradient > 0)) | ((x >= self.high) & (gradient < 0))
        return (~is_held & (self.low < self.high)).to(x.dtype)


@dataclass(frozen=True, kw_only=True)
class Point:
    """A place on the way down."""

    x: Tensor
    value: float
    gradient: Tensor


class Quasi:
    """Directions by L-BFGS (Nocedal and Wright 2006, algorithm 7.4)."""

    def __init__(self, *, first_step: float, pairs: int = 10) -> None:
        """`first_step`: how far the first step moves the value that it moves most."""
        self._first_step, self._most = first_step, pairs
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def direction(self, point: Point, free: Tensor) -> Tensor:
        """Where to go from a point."""
        gradient = point.gradient * free
        if not self._pairs:
            return -gradient * (self._first_step / gradient.abs().max().clamp_min(1e-300))
        down = gradient.clone()
        shares: list[float] = []
        for step, turn in reversed(self._pairs):
            shares.append(_dot(step, down) / _dot(step, turn))
            down -= shares[-1] * turn
        step, turn = self._pairs[-1]
        down *= _dot(step, turn) / _dot(turn, turn)
        for (step, turn), share in zip(self._pairs, reversed(shares), strict=True):
            down += (share - _dot(turn, down) / _dot(step, turn)) * step
        return -down * free

    def learn(self, before: Point, after: Point) -> None:
        """A step was made; where it shows no positive curvature, nothing is learnt."""
        step, turn = after.x - before.x, after.gradient - before.gradient
        if _dot(step, turn) > 1e-10 * float(step.norm() * turn.norm()):
            self._pairs = [*self._pairs[-(self._most - 1) :], (step, turn)]

    def forget(self) -> bool:
        """Start anew; false if there is nothing to forget."""
        had = bool(self._pairs)
        self._pairs = []
        return had


class Newton:
    """Directions by conjugate gradients on the second derivative (the same, algorithm 7.1)."""

    def __init__(
        self,
        product: Callable[[Tensor, Tensor], Tensor],
        *,
        first_step: float,
        inner: int = 8,
        damping: float = 1e-2,
    ) -> None:
        """`product` takes a point and a direction; `damping` is relative to the first curvature."""
        self._product, self._first_step = product, first_step
        self._inner, self._damping = inner, damping
        self._steepest = 0.0

    def direction(self, point: Point, free: Tensor) -> Tensor:
        """Where to go from a point."""
        down = -point.gradient * free
        size = float(down.norm())
        self._steepest = max(self._steepest, size)
        # Superlinear, and not more exact than it pays far from the end (Eisenstat and Walker).
        enough = min(0.5, (size / self._steepest) ** 0.5) * size

        def product(direction: Tensor) -> Tensor:
            return self._product(point.x, direction * free) * free

        found = solve(product, down, most=self._inner, enough=enough, damping=self._damping)
        if found is None:  # negative curvature at once: downhill, as far as a first step goes
            return down * (self._first_step / down.abs().max().clamp_min(1e-300))
        return found

    def learn(self, before: Point, after: Point) -> None:
        """Nothing is kept."""

    def forget(self) -> bool:
        """Nothing is kept."""
        return False


def solve(
    product: Product, right: Tensor, *, most: int, enough: float, damping: float
) -> Tensor | None:
    """Solve (A + damping c I) x = right by conjugate gradients; c is A's curvature along `right`.

    Stops at a direction of negative curvature with what it has, None if that is nothing.
    """
    x = torch.zeros_like(right)
    rest, along = right.clone(), right.clone()
    square = _dot(rest, rest)
    shift: float | None = None
    for _ in range(most):
        if square**0.5 <= enough or square == 0:
            break
        image = product(along)
        if shift is None:
            shift = damping * max(0.0, _dot(along, image) / _dot(along, along))
        image = image + shift * along
        curvature = _dot(along, image)
        if not curvature > 0:
            return x if bool(x.any()) else None
        length = square / curvature
        x = x + length * along
        rest = rest - length * image
        square, before = _dot(rest, rest), square
        along = rest + (square / before) * along
    return x


def descend(score: Score, point: Point, box: Box, way: Quasi | Newton) -> Point | None:
    """One step down; None if no shorter step leads down either."""
    for _ in range(2):
        free = box.free(point.x, point.gradient)
        direction = way.direction(point, free)
        if _dot(direction, point.gradient) < 0:
            found = _search(score, point, box, direction)
            if found is not None:
                way.learn(point, found)
                return found
        if not way.forget():
            return None
    return None


def _search(score: Score, point: Point, box: Box, direction: Tensor) -> Point | None:
    """Shorten a step until it keeps its promise, along the bent path within the bounds."""
    length = 1.0
    for _ in range(_TRIES):
        x = box.clamp(point.x + length * direction)
        promised = _dot(point.gradient, x - point.x)
        if not promised < 0:
            return None
        value, gradient = score(x)
        if value <= point.value + _ARMIJO * promised:
            return Point(x=x, value=value, gradient=gradient)
        # The lowest point of the parabola through what is known, not too near either end.
        bend = 2 * (value - point.value - promised)
        best = -promised / bend if bend > 0 else 0.5
        length *= min(0.5, max(0.1, best))
    return None


def _dot(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.flatten().double(), b.flatten().double()))
