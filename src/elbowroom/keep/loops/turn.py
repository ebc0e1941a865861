"""Steps with a tape, a stretch of them at a time, and gradients on their way back over them.

The tape of a long loop is not one graph but many short ones: they are walked and freed one by one.
"""

from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from elbowroom.host import Trimmer
from elbowroom.keep.loops.body import Body, Grads, Targets, Tensors, is_differentiable, leaves_of
from elbowroom.keep.loops.parameters import (
    Edges,
    edges_of,
    refuse_forgotten_edges,
    sequence_number,
)

# Steps in one graph: what surrounds a stretch weighs little in so many, and a walk is short.
STRETCH = 32

Ends = list[Any]
"""Where gradients come in: edges of the graph, and None where none can."""


class Stretch:
    """Some steps with their tape; holds no more of their states than autograd does."""

    def __init__(self, body: Body, state: Tensors, start: int) -> None:
        self._body = body
        self.start = start
        self._since = 0 if body.known is None else sequence_number()
        self.leaves = leaves_of(state)
        self.taken: list[Tensors] = []
        """Slices of the inputs, as leaves."""
        self.ends: Ends = []
        self.outputs: list[Ends] = []
        """Of each step."""
        self.after = [t.clone() for t in self.leaves] if body.is_in_place else list(self.leaves)

    def step(self, slices: Tensors) -> Tensors:
        """Make the next step with autograd on; its outputs are returned, and `after` moves on."""
        number = self.start + len(self.taken)
        self.taken.append(slices)
        self.after, outputs = self._body.run(self.after, slices, number)
        self.outputs.append(_ends_of(outputs))
        return outputs

    def end(self, known: Edges, *, is_emptied: bool = False) -> Tensors:
        """No more steps come: look at what they have differentiated; the state after them.

        With `is_emptied` the leaves have their shape and no values, which hooks have put elsewhere.
        """
        after = [t.detach() for t in self.after]
        self.ends, self.after = _ends_of(self.after), []
        if self._body.known is not None:  # a step may use what the first one did not
            mine = edges_of(self.leaves + [x for slices in self.taken for x in slices])
            results = [e for ends in (self.ends, *self.outputs) for e in ends if e is not None]
            refuse_forgotten_edges(results, mine | known, self._body.step, self._since)
        if is_emptied:
            for leaf in self.leaves:
                leaf.data = leaf.new_empty(()).expand(leaf.shape)
        return after


def _ends_of(tensors: Tensors) -> Ends:
    return [get_gradient_edge(t) if t.requires_grad else None for t in tensors]


class Turn:
    """Takes gradients back through a loop, a stretch of steps at a time, the last one first."""

    def __init__(
        self,
        body: Body,
        inputs: Tensors,
        parameters: Tensors,
        grads: Grads,
        output_grads: Grads,
    ) -> None:
        self._body, self._parameters = body, parameters
        self._grads, self._output_grads = grads, output_grads
        self._inputs = inputs
        self._sums: Grads = [None] * len(parameters)
        self.known = edges_of(parameters)
        """Where gradients of parameters come to."""
        self._is_shared = False
        self._trimmer = Trimmer()
        self._input_grads: Grads = [
            torch.zeros_like(t) if t.requires_grad else None for t in inputs
        ]

    def results(self) -> tuple[Grads, Grads, Grads]:
        """Of the state, the inputs and the parameters."""
        return self._grads, self._input_grads, self._sums

    def reverse(self, state: Tensors, start: int, end: int) -> None:
        """Tape the steps from this state, and take gradients back over them."""
        # A step makes and drops some fields for each that it has.
        self._trimmer.passed((end - start) * 4 * sum(t.nbytes for t in state))
        if end - start == 1:
            leaves, slices = leaves_of(state), slices_of(self._inputs, start)
            with torch.enable_grad():
                coming = self._of_outputs(start)
                targets = self._body.pull(leaves, slices, start, self._grads, coming)
            if targets is not None:
                pairs = [(t, g) for t, g in targets if t.requires_grad]
                self._take(leaves, [slices], pairs, start)
                return
        self.take(self.tape(state, start, end))

    def tape(self, state: Tensors, start: int, end: int) -> Stretch:
        """Make steps with a tape."""
        with torch.enable_grad():
            stretch = Stretch(self._body, state, start)
            for number in range(start, end):
                stretch.step(slices_of(self._inputs, number))
            stretch.end(self.known)
        return stretch

    def take(self, stretch: Stretch) -> None:
        """Take gradients back over a stretch."""
        body, start = self._body, stretch.start
        pairs: list[tuple[Any, Any]] = [*zip(stretch.ends, self._grads, strict=True)]
        for number, ends in enumerate(stretch.outputs, start):
            grads = self._of_outputs(number)
            if self._is_shared and number == start + len(stretch.outputs) - 1:
                for place, _ in body.shared:
                    grads[place] = None  # came in with the state
            pairs += zip(ends, grads, strict=True)
        self._take(stretch.leaves, stretch.taken, pairs, start)

    def _first(self, leaves: Tensors, start: int) -> Targets:
        """What is added up first: the node that was made last runs first.

        In plain autograd the gradient of a parameter so far comes before that of each use, and that
        of an output, if it is the very state, before that of the next step: so sums have the same
        bits.
        """
        targets: Targets = [
            (p.view_as(p), total)
            for p, total in zip(self._parameters, self._sums, strict=True)
            if total is not None
        ]
        self._is_shared = start > 0 and bool(self._body.shared)
        if self._is_shared:
            grads = self._of_outputs(start - 1)
            shared = self._body.shared
            targets += [(leaves[n].view_as(leaves[n]), grads[place]) for place, n in shared]
        return [(t, g) for t, g in targets if t.requires_grad]

    def _of_outputs(self, number: int) -> Grads:
        """Gradients of the outputs of a step."""
        return [None if grad is None else grad[number] for grad in self._output_grads]

    def _take(
        self, leaves: Tensors, taken: list[Tensors], pairs: list[tuple[Any, Any]], start: int
    ) -> None:
        with torch.enable_grad():
            pairs = [*pairs, *self._first(leaves, start)]
        asked = [t for t in leaves if is_differentiable(t)]
        asked += [x for slices in taken for x in slices if x.requires_grad]
        asked += [p for p in self._parameters if p.requires_grad]
        pairs = [(t, g) for t, g in pairs if t is not None and g is not None]
        found: Grads = [None] * len(asked)
        if pairs and asked:
            results, grads = zip(*pairs, strict=True)
            found = list(torch.autograd.grad(results, asked, grads, allow_unused=True))
        mine = iter(found)
        self._grads = [next(mine) if is_differentiable(t) else None for t in leaves]
        for offset, slices in enumerate(taken):
            for x, total in zip(slices, self._input_grads, strict=True):
                if total is not None and x.requires_grad and (grad := next(mine)) is not None:
                    total[start + offset] = grad
        self._sums = [next(mine) if p.requires_grad else None for p in self._parameters]


def slices_of(inputs: Tensors, number: int) -> Tensors:
    """The inputs of a step, as leaves."""
    return [
        x[number].detach().requires_grad_(x.requires_grad and is_differentiable(x)) for x in inputs
    ]
