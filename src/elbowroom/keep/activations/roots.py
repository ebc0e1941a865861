"""Which part of an output's gradient comes from outside of the model.

A model that returns its loss and the logits that it was made of gets one gradient, that of the
loss. The gradient that arrives at the logits is what the loss hands on, and to hand it in once more
would count it twice.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elbowroom.keep.activations.journey import energy
from elbowroom.keep.activations.needs import is_accumulator

Cut = Callable[[Tensor], Tensor]


class Arrivals:
    """The gradients of a call's outputs, as far as they come from outside; parts of them."""

    def __init__(self, outputs: list[Tensor], cut: Cut, arrived: Callable[[], None]) -> None:
        """`arrived` is called at every gradient that an output gets."""
        self._cut, self._arrived = cut, arrived
        self.gradients: list[Tensor | None] = [None] * len(outputs)
        """A part of each."""

        self.energies = [0.0] * len(outputs)
        """Of the whole gradients; of those with a part from inside it is not known."""

        self._from_inside: dict[int, Tensor] = {}
        self.are_all_roots = True
        """Whether no output with a gradient is a step on the way to another one."""

        self.handles: list[Any] = []
        for place, readers in _readers_of(outputs).items():
            for node, slot in readers:
                self.handles.append(node.register_hook(partial(self._hand_on, place, slot)))
        for place, output in enumerate(outputs):
            self.handles.append(output.register_hook(partial(self._arrive, place)))

    def forget(self) -> None:
        """Take the hooks off."""
        for handle in self.handles:
            handle.remove()
        self.handles, self._from_inside = [], {}

    def _hand_on(self, place: int, slot: int, inputs: Any, outputs: Any) -> None:
        gradient = inputs[slot]
        if gradient is not None and self.handles:
            found, known = self._cut(gradient.detach()), self._from_inside.get(place)
            self._from_inside[place] = found.clone() if known is None else known + found

    def _arrive(self, place: int, gradient: Tensor) -> None:
        if not self.handles:
            return
        gradient = gradient.detach()
        part, inside = self._cut(gradient), self._from_inside.pop(place, None)
        if inside is None:
            # All of it would wait until the end, and of logits that is a lot.
            self.gradients[place] = part.clone()
            self.energies[place] = energy(gradient)
        else:
            self.are_all_roots = False
            outside = part - inside
            rounding = 8 * torch.finfo(part.dtype).eps
            if energy(outside) > rounding**2 * energy(part):
                self.gradients[place] = outside
        self._arrived()


def _readers_of(outputs: list[Tensor]) -> dict[int, list[tuple[Any, int]]]:
    """For outputs of which others are made: the nodes that read them, and at which input."""
    places = {(o.grad_fn, o.output_nr): place for place, o in enumerate(outputs) if o.grad_fn}
    if len(places) < 2:
        return {}
    # What a node reads was made before it, and has a lower number.
    oldest = min(node._sequence_nr() for node, _ in places)
    queue = [node for node, _ in places]
    seen = set(queue)
    found: dict[int, list[tuple[Any, int]]] = {}
    while queue:
        node = queue.pop()
        for slot, (behind, output) in enumerate(node.next_functions):
            if behind is None or is_accumulator(behind) or behind._sequence_nr() < oldest:
                continue
            place = places.get((behind, output))
            if place is not None:
                found.setdefault(place, []).append((node, slot))
            if behind not in seen:
                seen.add(behind)
                queue.append(behind)
    return found
