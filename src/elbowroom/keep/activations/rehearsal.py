"""What errors inside of compiled graphs do to the gradient, by running the model again.

Nobody sees the operations in a compiled graph, so that no closed form tells how errors travel
there. They are measured instead, by the same graphs: a pass runs within tight bounds, and when its
backward has ended the model runs once more on the same batch, with the same random numbers and the
same gradients of its outputs, within looser bounds. The difference of the two gradients is the
error, of each parameter. Nothing is compiled again, since all shapes are the same, and no more
memory is taken than by the tight pass.

The first time the bounds are the same: the gradients have to be, too. Then all tensors get errors
at once, then each kind of them by itself (a kind is what its readers in backward are), so that
bounds become loose where that costs little. After that, one measurement in a while compares the
error with its prediction.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elbowroom.keep.activations.allocation import Demand, allocate
from elbowroom.keep.activations.graphs import is_compiled
from elbowroom.keep.activations.journey import energy
from elbowroom.keep.activations.ledger import Reading
from elbowroom.keep.activations.noise import Noise
from elbowroom.keep.activations.policy import BOLD, ENOUGH, spread
from elbowroom.keep.activations.rules import HASTE, WORTH
from elbowroom.keep.activations.sites import Site
from elbowroom.keep.activations.trees import tensors_in
from elbowroom.keep.surroundings import (
    copy_buffers,
    put_back,
    random_state,
    set_buffers,
    set_random_state,
)

# Passes between two measurements while costs are being learned: each takes about a step. They come
# beside the passes in which eager parts are looked at.
_EVERY = 4
# Measurements before those of single kinds: that they repeat, and two of all kinds.
_LEARNED = 3
# Kinds that are measured by themselves; what is left is one more.
_KINDS = 5
# No bound is looser by more than the one that was measured: beyond, errors do not grow alike.
_STRETCH = 4.0
# Gradients of two runs within the same bounds are the same, but for the order of sums.
_SAME = 1e-6

PACKED = "compiled parts keep floats as they are; masks and integers are packed"
TIGHT = "compiled parts are encoded within tight bounds until their errors have been measured"
NEVER = "compiled parts are encoded within tight bounds, and their error is not predicted"

Shares = NDArray[np.float64]


@dataclass(slots=True)
class Part:
    """A compiled place: what reads it, how large it is, and what its errors cost."""

    kind: str
    count: int = 0
    saved_bytes: int = 0

    measured: float = 0.0
    """The loosest bound at which errors were measured."""

    costs: Shares | None = None
    """Squared errors of the parameters' gradients for a unit of squared bound."""


@dataclass(slots=True)
class _Run:
    """A pass that will be run again."""

    random: Any
    buffers: list[Tensor]
    cast: tuple[bool, torch.dtype]
    call: Any = None
    outputs: list[Tensor | None] = field(default_factory=list)
    gradients: dict[int, Tensor] = field(default_factory=dict)
    is_queued: bool = False


class Rehearsal:
    """Decides the bounds of compiled places, from errors that were measured."""

    def __init__(
        self,
        model: nn.Module,
        noise: Noise,
        tolerance: float,
        trial: Callable[[], AbstractContextManager[None]],
        lossy: Callable[[], AbstractContextManager[Any]],
        tell: Callable[[str], None],
        readings: list[Reading],
    ) -> None:
        """A trial is what runs beside the user's passes, lossy the pass within it."""
        self._model, self._noise = model, noise
        self._tolerance, self._trial, self._lossy = tolerance, trial, lossy
        self._tell, self._readings = tell, readings
        self._parts: dict[Site, Part] = {}
        self._step = 0
        self._period = 0
        self._is_running = self.has_compiled = False
        self._run: _Run | None = None
        # Which kind has loose bounds now; None for all, "" for none.
        self._loose: str | None = None
        self._is_tight = False
        self._repeats: bool | None = None
        self._turn = 0
        self._handles: list[Any] = []
        self._is_whole = False
        self.totals: tuple[int, int] = (0, 0)
        """Of the last pass: bytes that plain training would hold, and those held without error."""

    # What a pass asks.

    def begin(self, step: int, period: int) -> None:
        """A pass begins; it may be one to be run again.

        A look comes once a period at least; with a period of 0 bounds stay as they are.
        """
        self.disarm()
        self._step, self._period = step, period
        if self._is_due(step) and self._can_run_again():
            self._is_tight, self._loose = True, ""
            self.note_start()
            # Hooks on a compiled model would have it compiled again; it tells by itself.
            if not (self._is_whole or is_compiled(self._model)):
                self._handles = [
                    self._model.register_forward_pre_hook(lambda *_: self.note_start()),
                    self._model.register_forward_hook(self._returned, with_kwargs=True),
                ]

    def _is_due(self, step: int) -> bool:
        if not self._parts or not self._period or self._repeats is False:
            return False
        if self._turn < _LEARNED + len(self._kinds()):
            return step == 2 or step % _EVERY == 1
        return step % self._period == 1 % self._period

    def _can_run_again(self) -> bool:
        modules = [type(p) for p in self._model.parameters()]
        is_wrapped = any(isinstance(m, DistributedDataParallel) for m in self._model.modules())
        return all(kind is nn.Parameter for kind in modules) and not is_wrapped

    def note_compiled(self, *, is_exact: bool) -> None:
        """A compiled part is about to run."""
        if not self.has_compiled:
            self.has_compiled = True
            is_on = self._period and self._can_run_again()
            self._tell(PACKED if is_exact else TIGHT if is_on else NEVER)

    def disarm(self) -> None:
        """Forget the pass that was to be run again."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._run, self._is_tight = [], None, False

    def note_start(self) -> None:
        """The model is about to run."""
        if (
            self._is_tight
            and not self._is_running
            and (self._run is None or self._run.call is None)
        ):
            cast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
            self._run = _Run(random_state(), copy_buffers([self._model]), cast)

    def note_call(self, model: Any, args: Any, kwargs: Any, output: Any) -> None:
        """The compiled model itself has returned."""
        self._is_whole = True
        self._note(model, args, kwargs, output)

    def _returned(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._handles:
            self._note(module, args, kwargs, output)

    def _note(self, model: Any, args: Any, kwargs: Any, output: Any) -> None:
        run = self._run
        if run is None or self._is_running:
            return
        if run.call is not None or not torch.is_grad_enabled():
            # Called more than once in a pass: one call's gradient is not the whole.
            self.disarm()
            return
        run.call = (model, args, kwargs)
        outputs = [t for t in tensors_in(output) if t.requires_grad]
        run.outputs = [None] * len(outputs)
        for place, tensor in enumerate(outputs):
            tensor.register_hook(lambda g, place=place: self._arrived(run, place, g))

    def bound_of(self, site: Site) -> float | None:
        """The bound of a place in the present pass; None for the first, tight one."""
        part = self._parts.get(site)
        if part is None:
            return None
        if self._is_tight:
            if not self._is_loose(part):
                return None
            return site.bound or BOLD * spread(site.sample) or None
        return None if part.costs is None else site.bound

    def _is_loose(self, part: Part) -> bool:
        return self._loose is None or self._loose == self._kind_of(part)

    def note_place(self, site: Site, readers: list[str], count: int, nbytes: int) -> None:
        """A compiled place has got an error."""
        part = self._parts.setdefault(site, Part(" ".join(readers) or "nothing"))
        part.count, part.saved_bytes = count, nbytes

    @property
    def share(self) -> float:
        """Of what plain training would hold: the part that is in compiled places."""
        compiled = sum(part.saved_bytes for part in self._parts.values())
        return min(1.0, compiled / max(1, self.totals[0]))

    def observe(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """The gradient of the user's own backward."""
        if self._run is not None:
            self._run.gradients[id(parameter)] = gradient.detach()

    # Running again.

    def _arrived(self, run: _Run, place: int, gradient: Tensor) -> None:
        if run is not self._run:
            return
        run.outputs[place] = gradient.detach()
        if not run.is_queued:
            run.is_queued = True
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(lambda: self._measure(run)))

    def _measure(self, run: _Run) -> None:
        if run is not self._run:
            return
        self._is_running, has_failed = True, True
        for handle in self._handles:
            handle.remove()
        try:
            with self._trial():
                self._loose = self._next()
                error = self._run_again(run)
                has_failed = error is None
                if error is not None:
                    self._learn(error, run)
        finally:
            self._is_running = False
            if has_failed:
                self._repeats = False
            self.disarm()

    def _next(self) -> str | None:
        """What gets errors this time."""
        if self._repeats is None:
            return ""
        # First all of them, at the first bounds and at those that follow; then one by one.
        kinds, turn = self._kinds(), self._turn - _LEARNED
        return kinds[turn] if len(kinds) > 1 and 0 <= turn < len(kinds) else None

    def _kinds(self) -> list[str]:
        sizes: dict[str, int] = {}
        for part in self._parts.values():
            sizes[part.kind] = sizes.get(part.kind, 0) + part.saved_bytes
        largest = sorted(sizes, key=lambda kind: -sizes[kind])
        return largest if len(largest) <= _KINDS + 1 else [*largest[:_KINDS], "others"]

    def _kind_of(self, part: Part) -> str:
        return part.kind if part.kind in self._kinds() else "others"

    def _run_again(self, run: _Run) -> dict[int, float] | None:
        """Squared errors of the gradients, by parameter."""
        model, args, kwargs = run.call
        parameters = [p for p in self._model.parameters() if id(p) in run.gradients]
        is_cast, dtype = run.cast
        with put_back(self._model), torch.enable_grad():
            set_random_state(run.random)
            set_buffers([self._model], run.buffers)
            with self._lossy(), torch.autocast("cpu", dtype, enabled=is_cast):
                output = model(*args, **kwargs)
            outputs = [t for t in tensors_in(output) if t.requires_grad]
            if len(outputs) != len(run.outputs):
                return None
            pairs = [(o, g) for o, g in zip(outputs, run.outputs, strict=True) if g is not None]
            del output, outputs
            found: Any = torch.autograd.grad(
                [o for o, _ in pairs], parameters, [g for _, g in pairs], allow_unused=True
            )
        return {
            id(p): energy(g - run.gradients[id(p)])
            for p, g in zip(parameters, found, strict=True)
            if g is not None
        }

    # What follows.

    def _learn(self, errors: dict[int, float], run: _Run) -> None:
        self._turn += 1
        if self._repeats is None:
            whole = sum(energy(g) for g in run.gradients.values())
            self._repeats = sum(errors.values()) <= _SAME * whole
            if not self._repeats:
                self._tell(
                    "compiled parts stay within tight bounds: the gradient of the model's own call "
                    "could not be repeated, so that errors cannot be measured"
                )
            return
        variances = {id(p): self._noise.variance(p) or 0.0 for p in self._model.parameters()}
        known = [leaf for leaf, variance in variances.items() if variance > 0]
        if not known or not all(math.isfinite(e) for e in errors.values()):
            self._turn -= 1
            return
        variance = np.array([variances[leaf] for leaf in known])
        error = np.array([errors.get(leaf, 0.0) for leaf in known])
        used = {
            site: bound
            for site, part in self._parts.items()
            if self._is_loose(part) and (bound := self.bound_of(site)) is not None
        }
        if self._loose is None:
            self._correct(error, float(variance.sum()), used)
        for site, bound in used.items():
            part = self._parts[site]
            if self._loose is not None or part.costs is None:
                part.costs = error / (len(used) * bound**2)
            part.measured = max(part.measured, bound)
        self._decide(known, variance)

    def _correct(self, error: Shares, variance: float, used: dict[Site, float]) -> None:
        """All of them were measured at once: set against what was expected."""
        expected = np.zeros_like(error)
        for site, bound in used.items():
            costs = self._parts[site].costs
            expected += 0 if costs is None else costs * bound**2
        if not expected.any():
            return
        measured, predicted = float(error.sum()) / variance, float(expected.sum()) / variance
        self._readings.append(Reading(step=self._step, predicted=predicted, measured=measured))
        factor = np.where(expected > 0, error / np.where(expected > 0, expected, 1.0), 1.0)
        for part in self._parts.values():
            part.costs = None if part.costs is None else part.costs * factor

    def _decide(self, known: list[int], variance: Shares) -> None:
        sites: list[Site] = []
        each: list[Shares] = []
        for site, part in self._parts.items():
            if part.costs is not None and spread(site.sample) > 0:
                sites.append(site)
                each.append(part.costs)
        if not sites:
            return
        units = np.array(each)
        layers = {id(p) for p in self._model.parameters() if p.dim() > 1}
        is_layer = np.array([leaf in layers for leaf in known])
        overall = units.sum(1) / variance.sum()
        mean = (units / variance) @ is_layer / max(1, int(is_layer.sum()))
        saved, other = self.totals
        tolerance = self._tolerance * self.share
        demands = [
            Demand(
                count=self._parts[site].count,
                scale=spread(site.sample),
                sample=_values(site),
                largest=_STRETCH * self._parts[site].measured,
                cost=float(a + b) / 2,
                known=site.densely(),
            )
            for site, a, b in zip(sites, overall, mean, strict=True)
        ]
        bounds = np.array(
            allocate(
                demands,
                tolerance,
                floor=WORTH * 8 * saved / self._tolerance,
                goal_bits=8 * saved / (HASTE * ENOUGH) - 8 * other,
                each=units / variance / self._tolerance,
            )
        )
        shares = np.stack([overall, mean], 1) * bounds[:, None] ** 2
        excess = min(1.0, tolerance / max(float(shares.sum(0).max()), 1e-300))
        for site, bound, share in zip(sites, bounds, shares * excess, strict=True):
            site.bound, site.share = float(bound) * excess**0.5, float(share[0])


def _values(site: Site) -> NDArray[np.float32]:
    return np.zeros(0, np.float32) if site.sample is None else site.sample.numpy()
