"""Slots that hold a state or the tape of a step, whichever makes fewer steps.

Where the tape of a step takes no more than a state, one may be kept in place of the other: a step
whose tape is kept is never made again (Maddison, J. Comput. Sci. 82, 2024).
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from elbowroom.keep.loops.body import Body, Grads, Stack, Tensors
from elbowroom.keep.loops.conditions import Moment
from elbowroom.keep.loops.plans import Plan
from elbowroom.keep.loops.schedules import Action
from elbowroom.keep.loops.slots import Copied, Pool, Slots
from elbowroom.keep.loops.turn import Stretch, Turn, slices_of

# Of lengths times slots: the table for them is made in about a second.
MOST_CELLS = 100_000


@lru_cache(maxsize=8)
def _table(length: int, slots: int) -> tuple[Any, Any]:
    """Steps made to go back over n steps with s slots, and how far to go first; 0 is a tape.

    Steps with a tape are counted, and nothing is kept at the start yet.
    """
    steps = np.zeros((slots + 1, length + 1), dtype=np.int64)
    first = np.zeros((slots + 1, length + 1), dtype=np.int64)
    steps[:, 1] = 1
    numbers = np.arange(length + 1, dtype=np.int64)
    for s in range(1, slots + 1):
        for n in range(2, length + 1):
            if n <= s + 1:
                steps[s, n] = n
            elif s == 1:
                steps[s, n], first[s, n] = n * (n + 1) // 2 - 1, n - 1
            else:
                made = numbers[2:n] + steps[s, 2:n] + steps[s - 1, n - 2 : 0 : -1]
                best = len(made) - 1 - int(made[::-1].argmin())
                steps[s, n], first[s, n] = made[best], best + 2
                taped = 1 + steps[s - 1, n - 1]
                if taped < steps[s, n]:
                    steps[s, n], first[s, n] = taped, 0
    return steps, first


def fewest_steps(length: int, slots: int) -> int:
    """The least steps made to go back over a loop, those with a tape included."""
    slots = max(1, min(slots, length - 1))
    return length if length < 2 else int(_table(length, slots)[0][slots, length])


def actions_of(length: int, slots: int) -> Iterator[Action]:
    """A loop's way there and back.

    `tape`: make the next step and keep its tape; `take`: go back over it.
    """
    slots = max(1, min(slots, length - 1))
    first = _table(length, slots)[1]
    waiting: list[tuple[str, int, int, int, bool]] = [("solve", 0, length, slots, False)]
    while waiting:
        what, start, end, left, is_kept = waiting.pop()
        if what == "take":
            yield Action("take", start, start + 1)
            continue
        if end - start == 1 or (distance := int(first[left, end - start])) == 0:
            if is_kept:
                yield Action("free", start, start)
            if end - start == 1:
                yield Action("reverse", start, end)
                continue
            yield Action("tape", start, start + 1)
            waiting += [("take", start, 0, 0, False), ("solve", start + 1, end, left - 1, False)]
            continue
        if not is_kept:
            yield Action("keep", start, start)
        yield Action("advance", start, start + distance)
        waiting.append(("solve", start, start + distance, left, True))
        waiting.append(("solve", start + distance, end, left - 1, False))


class Mixed:
    """A loop of known length whose slots hold states and tapes."""

    def __init__(self, body: Body, plan: Plan, length: int) -> None:
        self._body, self._plan = body, plan
        self.length: int | None = length
        self.made = 0
        """Steps made in all."""
        self._pool = Pool()
        self._slots = Slots(lambda state, _: Copied(state, self._pool))
        self._tapes: dict[int, Stretch] = {}
        self._actions: Iterator[Action] = iter(())
        self._at: tuple[Tensors, Moment | None] = [], None

    @property
    def held_bytes(self) -> int:
        """Of memory, in slots."""
        return self._slots.nbytes

    def forward(
        self, state: Tensors, inputs: Tensors, parameters: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Run the loop; return its last state and the outputs of all steps."""
        stack = Stack(self.length)
        try:
            return self._sweep(state, inputs, parameters, stack), stack.tensors()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give memory back."""
        self._slots.clear()
        self._pool.clear()
        self._tapes.clear()
        self._at, self._actions = ([], None), iter(())

    def backward(
        self,
        state: Tensors,
        inputs: Tensors,
        parameters: Tensors,
        grads: Grads,
        output_grads: Grads,
    ) -> tuple[Grads, Grads, Grads]:
        """Gradients of the first state, the inputs and the parameters."""
        turn = Turn(self._body, inputs, parameters, grads, output_grads)
        with self._body.conditions.put_back():
            try:
                if not self._tapes:  # a second backward: nothing is left of the first
                    self._body.conditions.rewind()
                    self._sweep(state, inputs, parameters, None)
                assert self.length is not None
                turn.take(self._tapes.pop(self.length - 1))
                for action in self._actions:
                    self._act(action, inputs, turn, None)
            finally:
                self.close()
        return turn.results()

    def _sweep(
        self, state: Tensors, inputs: Tensors, parameters: Tensors, stack: Stack | None
    ) -> Tensors:
        assert self.length is not None
        turn = Turn(self._body, inputs, parameters, [], [])
        self._at = [t.detach().clone() for t in state], None
        self._actions = actions_of(self.length, self._plan.slots)
        for action in self._actions:
            if action.act == "reverse":
                self._tape(action.start, inputs, turn, stack)
                break
            self._act(action, inputs, turn, stack)
        state, moment = self._at
        # What is returned gets a node that leads here: held, neither of them would ever go.
        self._at = [], moment
        return state

    def _act(self, action: Action, inputs: Tensors, turn: Turn, stack: Stack | None) -> None:
        conditions, start = self._body.conditions, action.start
        if action.act == "take":
            turn.take(self._tapes.pop(start))
            return
        if start in self._slots:  # every use of a state in a slot begins with it
            state, moment = self._slots.load(start)
            conditions.put(moment)
            self._at = state, moment
        if action.act == "free":
            self._slots.free(start)
        elif action.act == "keep":
            moment = conditions.moment(self._at[1])
            self._slots.keep(start, self._at[0], moment)
            self._at = self._at[0], moment
        elif action.act == "reverse":
            self.made += 1
            turn.reverse(self._at[0], start, action.end)
        elif action.act == "tape":
            self._tape(start, inputs, turn, stack)
        else:
            self._advance(start, action.end, inputs, stack)

    def _advance(self, start: int, end: int, inputs: Tensors, stack: Stack | None) -> None:
        body, (state, moment) = self._body, self._at
        with torch.no_grad():
            for number in range(start, end):
                run = body.run if number or stack is None else body.run_first
                state, outputs = run(state, body.slices(inputs, number), number)
                self.made += 1
                if stack is not None:
                    stack.add(outputs)
        self._at = [t.detach() for t in state], moment

    def _tape(self, number: int, inputs: Tensors, turn: Turn, stack: Stack | None) -> None:
        with torch.enable_grad():
            stretch = Stretch(self._body, self._at[0], number)
            outputs = stretch.step(slices_of(inputs, number))
            if stack is not None:
                stack.add(outputs)
            self._at = stretch.end(turn.known), self._at[1]
        self._tapes[number] = stretch
        self.made += 1
