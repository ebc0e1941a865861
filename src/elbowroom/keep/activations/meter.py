"""The meter: the true error of the gradient, from a few samples of a batch computed once more.

When backward has ended, the model runs twice more on a part of the batch with the same weights,
the same random numbers and the same gradients of its outputs: once plainly, once with compression.
The difference of the two gradients is the error. Buffers and random states are put back.

How much of the whole error a part should show follows from its share of the gradient's energy: of
the outputs, or, where the output is a loss, of what the last layers of the model gave. Errors of
samples that have nothing to do with one another add up in square; what they have in common adds up
before it is squared, and counts for more in a whole batch. So the part runs as two halves where it
can: what their errors have in common is seen.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elbowroom.keep.activations.journey import energy
from elbowroom.keep.activations.reruns import (
    Found,
    Grads,
    Probes,
    Start,
    outputs_in,
    plainly,
    run_again,
    value_of,
)
from elbowroom.keep.activations.roots import Arrivals
from elbowroom.keep.activations.samples import Part, Uncuttable, least_of, parts_of
from elbowroom.keep.surroundings import put_back


class Measured(NamedTuple):
    """What a part of a batch has shown."""

    error: float
    """Squared error that the gradient of the whole batch has by that."""

    is_part: bool


class Meter:
    """Armed before a pass, it measures when that pass's backward has ended."""

    def __init__(
        self,
        model: nn.Module,
        trial: Callable[[], AbstractContextManager[None]],
        lossy: Callable[[float], AbstractContextManager[Any]],
        report: Callable[[Measured], None],
        fits: Callable[[float], bool],
        tell: Callable[[str], None],
    ) -> None:
        self._model = model
        # Run again without the wrapper: its collectives belong to the user's own backward.
        self._inner = model.module if isinstance(model, DistributedDataParallel) else model
        self._trial, self._lossy, self._report = trial, lossy, report
        self._fits, self._tell = fits, tell
        self._handles: list[Any] = []
        self._probes = Probes()
        self._call: tuple[Any, Any] | None = None
        self._start: Start | None = None
        self._seen: _Seen | None = None
        self._is_queued = self._may_be_whole = self._has_told = False
        self._failed: set[tuple[int, bool]] = set()
        self.is_pending = False
        """Whether it has yet to find out how the batch is cut, and wants the next pass too."""

    def arm(self, *, may_be_whole: bool) -> None:
        """Watch the next call of the model; sharded models cannot run again inside a backward.

        A batch that cannot be cut runs again as a whole, if it may.
        """
        self.is_pending, self._may_be_whole = False, may_be_whole
        parameters = list(self._model.parameters())
        if any(type(p) is not nn.Parameter for p in parameters):
            return
        if not any(p.requires_grad for p in parameters):
            return
        self._handles = [
            self._model.register_forward_pre_hook(self._before, with_kwargs=True),
            self._model.register_forward_hook(self._after),
        ]

    def disarm(self) -> None:
        """Forget everything about the pass."""
        for handle in self._handles:
            handle.remove()
        if self._seen is not None:
            self._seen.arrivals.forget()
        self._probes.remove()
        self._handles, self._call, self._start, self._seen = [], None, None, None

    def _before(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        # A hook that is removed while hooks run may still be called.
        if self._handles:
            self.note_call(args, kwargs)

    def note_call(self, args: Any, kwargs: Any) -> None:
        """The model is about to run."""
        if not self._handles:
            return
        if self._call is None:
            self._call = (args, kwargs)
            self._start = Start(self._model)
            self._probes = Probes()
            self._probes.watch(self._inner)
        else:
            # Called more than once in a pass: one call's gradient is not the whole.
            self.disarm()

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._call is None or not self._handles:
            return
        outputs = outputs_in(output)
        ways = [
            part
            for part in parts_of(self._call, outputs, self._inner, least_of(self._inner))
            if (part.axis, part.counts_in_numbers) not in self._failed
        ]
        part = ways[0] if ways else None
        if part is None and not self._has_told:
            self._has_told = True
            self._tell(
                "the batch cannot be cut into parts: errors are measured on all of it, rarely and "
                "where memory allows"
            )
        self._probes.listen()
        cut = part.of_output if part is not None else lambda tensor: tensor
        self._seen = _Seen(
            part,
            Arrivals(outputs, cut, self._note_arrival),
            self._probes,
            [value_of(o) for o in outputs],
            part is not None and any(part.is_sum(o) for o in outputs),
        )

    def _note_arrival(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            # After what others do at the end of backward.
            _at_the_end(lambda: _at_the_end(self._measure))

    def _measure(self) -> None:
        self._is_queued = False
        call, start, seen = self._call, self._start, self._seen
        self.disarm()
        if call is None or start is None or seen is None:
            return
        part = seen.part
        if all(g is None for g in seen.arrivals.gradients):
            return
        if part is None and not self._may_be_whole:
            return
        if not self._fits(1.0 if part is None else part.share):
            # It would take the memory that is being saved.
            return
        with self._trial(), put_back(self._model):
            try:
                pieces = seen.pieces(call, least_of(self._inner))
                errors = [self._error(seen, start, *piece) for piece in pieces]
            except (_Unlike, Uncuttable):
                errors = []
                if part is not None:
                    self._failed.add((part.axis, part.counts_in_numbers))
                    self.is_pending = True
            if errors and all(0 < each.weight < math.inf for each in errors):
                self._report(Measured(_whole(errors), part is not None))

    def _error(
        self, seen: "_Seen", start: Start, call: tuple[Any, Any], gradients: Grads, share: float
    ) -> "_Error":
        try:
            plain = run_again(self._inner, call, gradients, start, plainly())
        except Exception:
            # A model may need its whole batch, in ways that only it knows.
            if seen.part is None:
                raise
            raise _Unlike from None
        lossy = None
        if plain is not None:
            lossy = run_again(self._inner, call, gradients, start, self._lossy(share))
        if plain is None or lossy is None:
            raise _Unlike
        differences = [
            (a - b) * scale**0.5 if a is not None and b is not None else None
            for a, b, scale in zip(plain.grads, lossy.grads, plain.scales, strict=True)
        ]
        return _Error(differences, seen.weight(gradients, plain, share), share)


class _Unlike(Exception):
    """The part of a batch did not give a part of the outputs."""


class _Error(NamedTuple):
    differences: Grads
    weight: float
    """The energy of these samples' gradients as a share of the whole batch's."""

    share: float
    """Of the samples."""


class _Seen(NamedTuple):
    """Of the pass whose backward is on its way."""

    part: Part | None
    arrivals: Arrivals
    probes: Probes
    values: list[float | None]
    has_sums: bool
    """Whether outputs do not get smaller with the batch, such as a loss."""

    def pieces(
        self, call: tuple[Any, Any], least: int
    ) -> list[tuple[tuple[Any, Any], Grads, float]]:
        """The part as two halves, where it is large enough: their calls, gradients and shares."""
        part, gradients = self.part, self.arrivals.gradients
        if part is None:
            return [(call, gradients, 1.0)]
        call = part.of_call(call)
        found: list[tuple[tuple[Any, Any], Grads, float]] = []
        for half in part.halves() if least == 1 else []:
            cut: Grads = [None if g is None else half.of_output(g) for g in gradients]
            found.append((half.of_call(call), cut, half.count / part.batch))
        return found or [(call, gradients, part.share)]

    def weight(self, gradients: Grads, found: Found, share: float) -> float:
        """The energy of these gradients as a share of the whole batch's."""
        if self.part is None:
            return 1.0
        # Errors grow with gradients, and those of samples differ: not their number counts.
        if self.arrivals.are_all_roots and not self.has_sums:
            arrived = sum(self.arrivals.energies)
            return sum(energy(g) for g in gradients) / arrived if arrived > 0 else 0.0
        ratios: list[float] = []
        for key, (whole, count) in self.probes.energies.items():
            here, few = found.probes.energies.get(key, (0.0, 0))
            if whole > 0 and few == round(share * count):
                ratios.append(here / whole)
        if ratios:
            return median(ratios)
        pairs = [
            abs(a / b)
            for a, b in zip(found.values, self.values, strict=True)
            if a and b and math.isfinite(a / b)
        ]
        # A sum over fewer samples is less, a mean is not, and its samples weigh more.
        return share if pairs and pairs[0] < share**0.5 else 1 / share


def _whole(errors: list[_Error]) -> float:
    """The squared error of the whole batch."""
    weight = sum(each.weight for each in errors)
    total = sum(energy(d) for each in errors for d in each.differences)
    if len(errors) < 2:
        return total / weight
    one, other = errors
    # What each half has of what all samples have in common, which is one in the whole batch.
    halves = [(each.weight * each.share) ** 0.5 for each in errors]
    common = sum(
        _product(a, b) for a, b in zip(one.differences, other.differences, strict=True)
    ) / (halves[0] * halves[1])
    common = min(max(common, 0.0), total / sum(half**2 for half in halves))
    return (total - common * sum(half**2 for half in halves)) / weight + common


def _product(one: Tensor | None, other: Tensor | None) -> float:
    if one is None or other is None or one.layout != torch.strided:
        return 0.0
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    return float((one.double() * other.double()).sum())


def _at_the_end(action: Callable[[], None]) -> None:
    """Of backward; of its end itself, if that has come."""
    torch.autograd.Variable._execution_engine.queue_callback(action)
