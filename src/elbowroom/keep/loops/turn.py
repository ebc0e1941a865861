"""Gradients on their way back over steps that are made again with a tape."""

import torch

from elbowroom.host import Trimmer
from elbowroom.keep.loops.body import Body, Grads, Targets, Tensors, is_differentiable, leaves_of
from elbowroom.keep.loops.parameters import edges_of, refuse_forgotten, sequence_number


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
        self._edges = edges_of(parameters)
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
        leaves = leaves_of(state)
        taken: list[Tensors] = [self._slices(number) for number in range(start, end)]
        with torch.enable_grad():
            targets = None
            if end - start == 1:
                coming = self._of_outputs(start)
                targets = self._body.pull(leaves, taken[0], start, self._grads, coming)
            if targets is None:
                targets = self._tape(leaves, taken, start)
            targets += self._first(leaves, start)
        self._take(leaves, taken, targets, start)

    def _tape(self, leaves: Tensors, taken: list[Tensors], start: int) -> Targets:
        """Make the steps: what comes out of them, and the gradient that comes in there."""
        body = self._body
        targets: Targets = []
        since = 0 if body.known is None else sequence_number()
        after = [t.clone() for t in leaves] if body.is_in_place else list(leaves)
        for number, slices in enumerate(taken, start):
            after, outputs = body.run(after, slices, number)
            grads = self._of_outputs(number)
            if self._is_shared and number == start + len(taken) - 1:
                for place, _ in body.shared:
                    grads[place] = None  # came in with the state
            targets += zip(outputs, grads, strict=True)
        targets = [*zip(after, self._grads, strict=True), *targets]
        if body.known is not None:  # a step may use what the first one did not
            ends = edges_of(leaves + [x for slices in taken for x in slices]) | self._edges
            refuse_forgotten([t for t, _ in targets], ends, body.step, since)
        return targets

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
        return targets

    def _slices(self, number: int) -> Tensors:
        """The inputs of a step, as leaves."""
        return [
            x[number].detach().requires_grad_(g is not None)
            for x, g in zip(self._inputs, self._input_grads, strict=True)
        ]

    def _of_outputs(self, number: int) -> Grads:
        """Gradients of the outputs of a step."""
        return [None if grad is None else grad[number] for grad in self._output_grads]

    def _take(self, leaves: Tensors, taken: list[Tensors], targets: Targets, start: int) -> None:
        asked = [t for t in leaves if is_differentiable(t)]
        asked += [x for slices in taken for x in slices if x.requires_grad]
        asked += [p for p in self._parameters if p.requires_grad]
        pairs = [(t, g) for t, g in targets if t.requires_grad and g is not None]
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
