"""An engine that starts again with another when the first takes more than it may."""

from collections.abc import Callable

from elbowroom.keep.loops.body import Body, Grads, Tensors
from elbowroom.keep.loops.history import History, Overflow
from elbowroom.keep.loops.replay import Replay


class Careful:
    """A history, or states where it turns out to take too much."""

    def __init__(self, first: History, other: Callable[[], Replay], body: Body) -> None:
        self._engine: History | Replay = first
        self._other, self._body = other, body

    @property
    def length(self) -> int | None:
        """Of the loop, once it is known."""
        return self._engine.length

    @property
    def made(self) -> int:
        """Steps, in all."""
        return self._engine.made

    @property
    def held_bytes(self) -> int:
        """Of memory."""
        return self._engine.held_bytes

    def close(self) -> None:
        """Give memory back."""
        self._engine.close()

    def forward(
        self, state: Tensors, inputs: Tensors, parameters: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Run the loop, a second time if need be."""
        conditions = self._body.conditions
        try:
            return self._engine.forward(state, inputs, parameters)
        except Overflow:
            conditions.rewind()
        self._engine = self._other()
        return self._engine.forward(state, inputs, parameters)

    def backward(
        self,
        state: Tensors,
        inputs: Tensors,
        parameters: Tensors,
        grads: Grads,
        output_grads: Grads,
    ) -> tuple[Grads, Grads, Grads]:
        """Gradients of the first state, the inputs and the parameters."""
        engine, coming = self._engine, (list(grads), list(output_grads))
        try:
            return engine.backward(state, inputs, parameters, grads, output_grads)
        except Overflow:
            # A second backward makes the history again, and its bound may be smaller by now.
            self._engine = self._other()
            self._engine.length = engine.length
        return self._engine.backward(state, inputs, parameters, *coming)
