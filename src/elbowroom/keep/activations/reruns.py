"""A model that runs again, beside the user's training: its gradients, and how large they are."""

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elbowroom.keep.activations.hooks import top_hooks
from elbowroom.keep.activations.journey import energy
from elbowroom.keep.activations.trees import tensors_in
from elbowroom.keep.surroundings import copy_buffers, random_state, set_buffers, set_random_state

# Calls of layers whose gradients tell the part's share of all energy: the last ones.
_PROBED = 4

# Of larger gradients so many values are compared: both would wait beside the user's own.
_COMPARED = 1 << 18

Grads = list[Tensor | None]


class Start:
    """What a run must find as it was."""

    def __init__(self, model: nn.Module) -> None:
        self._random = random_state()
        # Backward runs without it.
        self._cast = (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
        self._buffers = copy_buffers([model])

    def again(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Put it back; the forward runs in the context."""
        set_random_state(self._random)
        set_buffers([model], self._buffers)
        is_cast, dtype = self._cast
        return torch.autocast("cpu", dtype, enabled=is_cast)


def run_again(
    model: nn.Module,
    call: tuple[Any, Any],
    gradients: Grads,
    start: Start,
    context: AbstractContextManager[Any],
) -> "Found | None":
    """None where its outputs are not those that the gradients are for."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    args, kwargs = call
    probes = Probes()
    probes.watch(model)
    try:
        with torch.enable_grad():
            with start.again(model), context:
                output = model(*args, **(kwargs or {}))
            probes.listen()
            outputs = outputs_in(output)
            if len(outputs) != len(gradients):
                return None
            pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None]
            if any(o.shape != g.shape for o, g in pairs):
                return None
            grads, scales = _gradients(pairs, parameters)
    finally:
        probes.remove()
    return Found(grads, scales, [value_of(o) for o in outputs], probes)


class Found(NamedTuple):
    """What a run has given."""

    grads: Grads
    """Of parameters, of large ones some values."""

    scales: list[float]
    """By which squares of those stand for all of them."""

    values: list[float | None]
    """Of outputs that are one number."""

    probes: "Probes"


class Probes:
    """Energies of the gradients of what the last layers gave."""

    def __init__(self) -> None:
        self.energies: dict[tuple[str, int], tuple[float, int]] = {}
        """By layer and call: the energy, and of how many values."""

        self._last: deque[tuple[tuple[str, int], Any, int]] = deque(maxlen=_PROBED)
        self._calls: dict[str, int] = {}
        self._handles: list[Any] = []

    def watch(self, model: nn.Module) -> None:
        """Until `listen`."""
        for name, module in model.named_modules():
            if name and next(module.children(), None) is None:
                self._handles.append(module.register_forward_hook(partial(self._note, name)))

    def _note(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.grad_fn is not None and output.dim():
            call = self._calls[name] = self._calls.get(name, 0) + 1
            self._last.append(((name, call), output.grad_fn, output.output_nr))

    def listen(self) -> None:
        """The model has run: wait for the gradients of the last ones."""
        self.remove()
        for key, node, place in self._last:
            self._handles.append(node.register_prehook(partial(self._arrive, key, place)))
        self._last.clear()

    def _arrive(self, key: tuple[str, int], place: int, gradients: Any) -> None:
        gradient = gradients[place]
        if gradient is not None:
            self.energies[key] = (energy(gradient), gradient.numel())

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _gradients(
    pairs: list[tuple[Tensor, Tensor]], parameters: list[nn.Parameter]
) -> tuple[Grads, list[float]]:
    """Of the parameters; of a large one some values, and how many each of them stands for."""
    some: dict[int, Tensor] = {}
    handles: list[Any] = []
    scales = [max(1, -(-p.numel() // _COMPARED)) | 1 for p in parameters]

    def thin(place: int, gradient: Tensor) -> Tensor | None:
        if gradient.layout != torch.strided:
            return None
        some[place] = gradient.detach().reshape(-1)[:: scales[place]].clone()
        return gradient.new_zeros(()).expand_as(gradient)

    for place, parameter in enumerate(parameters):
        if scales[place] > 1:
            handles.append(parameter.register_hook(partial(thin, place)))
    try:
        found = torch.autograd.grad(
            [o for o, _ in pairs], parameters, [g for _, g in pairs], allow_unused=True
        )
    finally:
        for handle in handles:
            handle.remove()
    grads: Grads = [some.get(place, grad) for place, grad in enumerate(found)]
    return grads, [float(s) if place in some else 1.0 for place, s in enumerate(scales)]


def plainly() -> AbstractContextManager[Any]:
    """Where a backward runs inside of a room, the room's hooks are passed by."""
    if top_hooks() is None:
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t)


def outputs_in(output: Any) -> list[Tensor]:
    """Those with a graph behind them, each once."""
    found = [t for t in tensors_in(output) if t.grad_fn is not None]
    return list({(t.grad_fn, t.output_nr): t for t in found}.values())


def value_of(output: Tensor) -> float | None:
    """Of a loss; None of anything with more than one value."""
    is_number = output.numel() == 1 and not output.is_complex()
    return float(output.detach()) if is_number else None
