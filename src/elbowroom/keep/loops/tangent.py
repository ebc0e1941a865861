"""A loop's step as a step of states and tangents, side by side."""

from typing import Any

import torch
from torch import Tensor

from elbowroom.keep.loops.body import Body, Grads, Inputs, Targets, Tensors, is_differentiable
from elbowroom.keep.loops.structure import Structure


class Tangent(Body):
    """A step of states and tangents: f(x), and the derivative of f at x along the tangent.

    The derivative is that of the transposed derivative, which is linear: d/du (J^T u) . v = J v. So
    a step needs no forward mode, only to be differentiable twice.
    """

    def __init__(self, inner: Body, parameters: Tensors, inputs: int) -> None:
        self.inner = inner
        self._parameters = parameters
        self._inputs = inputs
        self.output_count = 0
        self.moving_outputs: list[int] = []
        self.is_in_place = False
        self.conditions = inner.conditions
        self.inputs = Inputs(None)
        self.has_outputs = inner.has_outputs
        self.output_structure = None
        self.known = None
        self._shared = set()
        self.step = inner.step

    def set(self, moving: list[int], flowing: list[int], constants: Tensors) -> None:
        """Which states and inputs have tangents, and the tangents of the parameters."""
        self._moving, self._flowing, self._constants = moving, flowing, constants
        count = self.inner.structure.count
        self.structure = Structure(list, (), (Structure(Tensor, (), ()),) * (count + len(moving)))

    def run(self, state: Tensors, slices: Tensors, number: int) -> tuple[Tensors, Tensors]:
        """Make a step of both."""
        is_taped = torch.is_grad_enabled()
        count = self.inner.structure.count
        primal, dots = state[:count], state[count:]
        given, given_dots = slices[: self._inputs], slices[self._inputs :]
        with torch.enable_grad():
            if not is_taped:
                primal = [_leaf(t) for t in primal]
                given = [_leaf(t) for t in given]
            else:
                primal = [_wanted(t) for t in primal]
                given = [_wanted(t) for t in given]
            start = [t.clone() for t in primal] if self.inner.is_in_place else primal
            after, outputs = self.inner.run(start, given, number)
            self.output_count = len(outputs)
            self.moving_outputs = [n for n, t in enumerate(outputs) if is_differentiable(t)]
            ends = [after[n] for n in self._moving] + [outputs[n] for n in self.moving_outputs]
            starts = [primal[n] for n in self._moving] + [given[n] for n in self._flowing]
            along = [*dots, *given_dots, *self._constants]
            pushed = _tangents(ends, [*starts, *self._parameters], along, is_taped=is_taped)
        moved, rest = pushed[: len(self._moving)], pushed[len(self._moving) :]
        results = [*after, *moved], [*outputs, *rest]
        if is_taped:
            return results
        return [t.detach() for t in results[0]], [t.detach() for t in results[1]]

    def pull(
        self, leaves: Tensors, slices: Tensors, number: int, grads: Grads, output_grads: Grads
    ) -> Targets | None:
        """Gradients of states and tangents, without a tape of the tangents themselves.

        With u the gradient of the tangents after the step, u . J v = (J^T u) . v: its gradient by v
        is J^T u, and that by the state is found by differentiating J^T u once. On a tape of J v it
        would be the third derivative of the step, of which torch's own are not all right: that of
        a norm of layers takes its mean for a constant.
        """
        count = self.inner.structure.count
        primal, dots = leaves[:count], leaves[count:]
        given, given_dots = slices[: self._inputs], slices[self._inputs :]
        start = [t.clone() for t in primal] if self.inner.is_in_place else primal
        after, outputs = self.inner.run(start, given, number)
        moving = [n for n, t in enumerate(outputs) if is_differentiable(t)]
        ends = [after[n] for n in self._moving] + [outputs[n] for n in moving]
        coming = [*grads[count:], *output_grads[len(outputs) :]]
        starts = [primal[n] for n in self._moving] + [given[n] for n in self._flowing]
        along = [*dots, *given_dots, *self._constants]
        pairs = [
            (s, v)
            for s, v in zip([*starts, *self._parameters], along, strict=True)
            if s.requires_grad
        ]
        live = [
            (t, u) for t, u in zip(ends, coming, strict=True) if t.requires_grad and u is not None
        ]
        targets: Targets = [
            *zip(after, grads[:count], strict=True),
            *zip(outputs, output_grads[: len(outputs)], strict=True),
        ]
        if not live or not pairs:
            return targets
        results, weights = zip(*live, strict=True)
        pulled: Any = torch.autograd.grad(
            results, [s for s, _ in pairs], weights, create_graph=True, allow_unused=True
        )
        for found, (_, v) in zip(pulled, pairs, strict=True):
            if found is not None:
                targets += [(found, v.detach()), (v.view_as(v), found.detach())]
        return targets


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(is_differentiable(tensor))


def _wanted(tensor: Tensor) -> Tensor:
    """Something whose derivative can be asked for, also where the loop's own is not."""
    if tensor.requires_grad or not is_differentiable(tensor):
        return tensor
    return tensor.detach().requires_grad_()


def _tangents(ends: Tensors, starts: Tensors, along: Tensors, *, is_taped: bool) -> Tensors:
    """J v, for the Jacobian of the ends by the starts."""
    live = [n for n, t in enumerate(ends) if t.requires_grad]
    made = [torch.zeros_like(t) for t in ends]
    moved = [(s, v) for s, v in zip(starts, along, strict=True) if s.requires_grad]
    if not live or not moved:
        return made
    weights = [torch.zeros_like(ends[n]).requires_grad_() for n in live]
    pulled: Any = torch.autograd.grad(
        [ends[n] for n in live],
        [s for s, _ in moved],
        weights,
        create_graph=True,
        allow_unused=True,
    )
    pairs = [(g, v) for g, (_, v) in zip(pulled, moved, strict=True) if g is not None]
    pairs = [(g, v) for g, v in pairs if g.requires_grad]
    if not pairs:
        return made
    grads, vectors = zip(*pairs, strict=True)
    found: Any = torch.autograd.grad(
        grads, weights, vectors, create_graph=is_taped, allow_unused=True
    )
    for n, dot in zip(live, found, strict=True):
        if dot is not None:
            made[n] = dot
    return made
