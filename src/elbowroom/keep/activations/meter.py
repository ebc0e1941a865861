"""The meter: the true error of the gradient, from the same batch computed once more.

When backward has ended, the model runs twice more on a part of the batch with the same weights,
the same random numbers and the same gradients of its outputs: once plainly, once with compression.
The difference of the two gradients is the error. Buffers and random states are put back.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elbowroom.keep.activations.journey import energy
from elbowroom.keep.activations.trees import map_tensors, tensors_in
from elbowroom.keep.surroundings import (
    copy_buffers,
    put_back,
    random_state,
    set_buffers,
    set_random_state,
)

# Of a batch, at most this share is run again, so that the memory it takes plainly is far below
# what was saved.
PART = 8
# Statistics of a batch need a few samples; where memory is short, two have to do.
LEAST = 4
SHORT = 2

Grads = list[Tensor | None]


class Meter:
    """Armed before a pass, it measures when that pass's backward has ended."""

    def __init__(
        self,
        model: nn.Module,
        trial: Callable[[], AbstractContextManager[None]],
        lossy: Callable[[float], AbstractContextManager[Any]],
        report: Callable[[float, float], None],
        share: float,
        fits: Callable[[float], bool],
    ) -> None:
        self._model = model
        # Run again without the wrapper: its collectives belong to the user's own backward.
        self._inner = model.module if isinstance(model, DistributedDataParallel) else model
        self._trial = trial
        self._lossy = lossy
        self._report = report
        self._share = share
        self._fits = fits
        self._call: tuple[Any, Any] | None = None
        self._outputs: list[Tensor | None] = []
        self._energies: list[float] = []
        self._part: tuple[int, int] | None = None
        self._handles: list[Any] = []
        self._random: Any = None
        self._cast: tuple[bool, torch.dtype] = (False, torch.bfloat16)
        self._buffers: list[Tensor] = []
        self._queued = False

    def arm(self) -> None:
        """Watch the next call of the model; sharded models cannot run again inside a backward."""
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
        """Forget everything."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._call, self._outputs, self._buffers = [], None, [], []
        self._energies, self._part = [], None

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
            self._random = random_state()
            # Backward runs without it.
            self._cast = (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
            self._buffers = copy_buffers([self._model])
        else:
            # Called more than once in a pass: one call's gradient is not the whole.
            self.disarm()

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        outputs = [t for t in tensors_in(output) if t.requires_grad]
        self._outputs, self._energies = [None] * len(outputs), [0.0] * len(outputs)
        self._part = _part_of([*tensors_in(self._call), *outputs], self._share)
        for place, tensor in enumerate(outputs):
            tensor.register_hook(lambda g, place=place: self._arrived(place, g))

    def _arrived(self, place: int, gradient: Tensor) -> None:
        # Another thread, whose pass is a second call, may forget everything meanwhile.
        part, outputs, energies = self._part, self._outputs, self._energies
        if self._call is None or not len(outputs) == len(energies) > place:
            return
        gradient = gradient.detach()
        energies[place] = energy(gradient)
        if part is not None:
            # All of it would wait until the end, and of logits that is a lot.
            gradient = gradient[: part[0]].clone()
        outputs[place] = gradient
        if not self._queued:
            self._queued = True
            _at_the_end(lambda: _at_the_end(self._measure))

    def _measure(self) -> None:
        self._queued = False
        call, gradients, random, buffers = self._call, self._outputs, self._random, self._buffers
        arrived, known = sum(self._energies), self._part
        self.disarm()
        if call is None or all(g is None for g in gradients):
            return
        args, kwargs, gradients, part = _cut(call, gradients, self._share, known)
        # Errors grow with gradients, and those of samples differ: not their number counts.
        weight = sum(energy(g) for g in gradients) / arrived if arrived > 0 else 0.0
        if not weight > 0:
            return
        if not self._fits(part) or (part == 1 and self._share < 1):
            # It would take the memory that is being saved.
            return
        with self._trial():
            results = self._both(args, kwargs, gradients, random, buffers, part)
            if results is not None:
                error = sum(
                    float((a - b).float().square().sum())
                    for a, b in zip(*results, strict=True)
                    if a is not None and b is not None
                )
                self._report(error, weight)

    def _both(
        self,
        args: Any,
        kwargs: Any,
        gradients: Grads,
        random: Any,
        buffers: list[Tensor],
        part: float,
    ) -> tuple[Grads, Grads] | None:
        """The gradients without and with compression."""
        results: list[Grads] = []
        with put_back(self._model):
            for is_lossy in (False, True):
                set_random_state(random)
                set_buffers([self._model], buffers)
                context = self._lossy(part) if is_lossy else nullcontext()
                found = self._run(args, kwargs, gradients, context)
                if found is None:
                    return None
                results.append(found)
        return results[0], results[1]

    def _run(
        self, args: Any, kwargs: Any, gradients: Grads, context: AbstractContextManager[Any]
    ) -> Grads | None:
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        with torch.enable_grad():
            is_cast, dtype = self._cast
            with context, torch.autocast("cpu", dtype, enabled=is_cast):
                output = self._inner(*args, **kwargs)
            outputs = [t for t in tensors_in(output) if t.requires_grad]
            if len(outputs) != len(gradients):
                return None
            pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None]
            if any(o.shape != g.shape for o, g in pairs):
                return None
            return list(
                torch.autograd.grad(
                    [o for o, _ in pairs],
                    parameters,
                    [g for _, g in pairs],
                    allow_unused=True,
                )
            )


def part_of(batch: int, share: float = 1.0) -> int:
    """How many samples of a batch are run again; all of them where they are few."""
    least = LEAST if share >= 1 else SHORT
    return batch if batch < 2 * least else max(least, int(batch * min(share, 1 / PART)))


def _at_the_end(action: Callable[[], None]) -> None:
    """Of backward; of its end itself, if that has come: after what others do there."""
    torch.autograd.Variable._execution_engine.queue_callback(action)


def _part_of(tensors: list[Tensor], share: float) -> tuple[int, int] | None:
    """How many samples are run again, and of how many, where all tensors agree on that."""
    sizes = {t.shape[0] if t.dim() else 0 for t in tensors}
    if len(sizes) != 1:
        return None
    batch = sizes.pop()
    return part_of(batch, share), batch


def _cut(
    call: tuple[Any, Any], gradients: Grads, share: float, known: tuple[int, int] | None
) -> tuple[Any, Any, Grads, float]:
    """The first part of the batch; where it is known, gradients have been cut already."""
    tensors = [*tensors_in(call), *(g for g in gradients if g is not None)]
    found = known or _part_of(tensors, share)
    if found is None or found[0] == found[1]:
        return *call, gradients, 1.0
    count, batch = found
    args, kwargs = map_tensors(lambda t: t[:count], call)
    return args, kwargs, [None if g is None else g[:count] for g in gradients], count / batch
