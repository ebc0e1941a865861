"""Going back over a loop by making steps again from the states that were kept."""

from collections.abc import Callable
from typing import Any

import torch

from elbowroom.host import Trimmer
from elbowroom.keep.loops import schedules
from elbowroom.keep.loops.body import Body, Grads, Stack, Tensors
from elbowroom.keep.loops.conditions import Moment
from elbowroom.keep.loops.plans import Plan
from elbowroom.keep.loops.slots import Copied, Disk, Held, Pool, Slots
from elbowroom.keep.loops.turn import STRETCH, Turn

# Steps from which on a loop is long, and what may be taped beside the states that are kept.
_LONG, _TAPED_BYTES = 512, 1 << 18

Until = Callable[[Any], Any]


class Replay:
    """A loop whose states are kept now and then.

    `forward` may be called once; `backward` makes what is missing again, and can be called again.
    """

    def __init__(self, body: Body, plan: Plan, length: int | None, until: Until | None) -> None:
        self._body, self._plan = body, plan
        self._until = until
        self._limit = length
        self.length = length
        """Of the loop, once it is known."""
        self.made = 0
        """Steps made in all, taped ones not counted."""
        self._segment = plan.segment
        self._capacity = plan.slots + plan.disk_slots
        self._disk = Disk(plan.folder) if plan.disk_slots else None
        self._memory_slots: set[int] = set(range(plan.slots))
        self._pool = Pool()
        self._slots = Slots(self._put)
        self._kept: list[int] = []

    def forward(
        self, state: Tensors, inputs: Tensors, parameters: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Run the loop; return its last state and the outputs of all steps."""
        stack = Stack(self._limit if self._until is None else None)
        try:
            with torch.no_grad():
                return self._sweep(state, inputs, stack), stack.tensors()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give memory and files back."""
        self._slots.clear()
        self._pool.clear()  # or the next loop, of the second order for one, would come on top of it
        self._kept = []

    @property
    def held_bytes(self) -> int:
        """Of memory, in slots."""
        return self._slots.nbytes

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
                if not self._kept and self.length:
                    with torch.no_grad():  # a second backward: nothing is left of the first
                        self._until, self._limit = None, self.length
                        self._body.conditions.rewind()
                        self._sweep(state, inputs, None)
                self._go_back(turn, inputs)
            finally:
                self.close()
        return turn.results()

    def _sweep(self, state: Tensors, inputs: Tensors, stack: Stack | None) -> Tensors:
        body = self._body
        online = schedules.Online(self._is_full)
        chosen = self._place()
        # A step may change its state in place, and this one is the user's.
        state = [t.detach().clone() for t in state]
        number, moment = 0, None
        trimmer, nbytes = Trimmer(), sum(t.nbytes for t in state)
        while self._limit is None or number < self._limit:
            if number % self._segment == 0:
                if chosen is None:
                    for freed in online.offer(number):
                        self._slots.free(freed)
                if number in (online if chosen is None else chosen):
                    moment = body.conditions.moment(moment)
                    self._slots.keep(number, state, moment)
            run = body.run if number or stack is None else body.run_first
            state, outputs = run(state, body.slices(inputs, number), number)
            if number == 0 and self._lengthen():
                chosen = self._place()
            self.made += 1
            number += 1
            trimmer.passed(nbytes)
            if stack is not None:
                stack.add(outputs)
            if self._until is not None and bool(self._until(body.structure.build(state))):
                break
        self.length = number
        self._kept = online.kept if chosen is None else sorted(chosen)
        return [t.detach() for t in state]

    def _lengthen(self) -> bool:
        """Steps of a long loop that take little are taped many at a time; true if so."""
        is_long = self._limit is None or self._limit >= _LONG
        if self._segment > 1 or not is_long or not self._body.taped_bytes:
            return False
        self._segment = max(1, min(STRETCH, _TAPED_BYTES // self._body.taped_bytes))
        return self._segment > 1

    def _place(self) -> set[int] | None:
        """Steps before which states are kept; None where that is decided on the way."""
        plan = self._plan
        if plan.schedule == "online" or self._limit is None or self._until is not None:
            return None
        units = -(-self._limit // self._segment)
        if plan.schedule == "periodic":
            period = max(1, -(-units // max(1, self._capacity)))
            found = schedules.every(units, period)
        else:
            found = schedules.placements(units, self._capacity)
        if self._disk is not None:
            busy = schedules.busiest_slots(found, units, self._capacity)
            self._memory_slots = set(busy[: plan.slots])
        return {unit * self._segment for unit in found}

    def _is_full(self, count: int) -> bool:
        return count >= self._capacity

    def _put(self, state: Tensors, held: int) -> Held:
        if self._disk is not None and held not in self._memory_slots:
            return self._disk.put(state)
        return Copied(state, self._pool)

    def _go_back(self, turn: Turn, inputs: Tensors) -> None:
        assert self.length is not None
        segment = self._segment
        units = -(-self.length // segment)
        kept = [number // segment for number in self._kept]
        state: Tensors = []
        moment: Moment | None = None
        for action in schedules.backward(kept, units, max(self._capacity, len(kept))):
            start, end = action.start * segment, min(action.end * segment, self.length)
            if action.act == "free":
                self._slots.free(start)
                continue
            if action.act == "keep":
                moment = self._body.conditions.moment(moment)
                self._slots.keep(start, state, moment)
                continue
            if start in self._slots:
                state, found = self._slots.load(start)
                self._body.conditions.put(found)
                moment = found
            if action.act == "reverse":
                turn.reverse(state, start, end)
                continue
            with torch.no_grad():
                for number in range(start, end):
                    state, _ = self._body.run(state, self._body.slices(inputs, number), number)
                    self.made += 1
