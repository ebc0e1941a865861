"""`loop`: a for-loop over a state that is differentiable in bounded memory."""

import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from elbowroom.codec.opaque import opaque
from elbowroom.errors import InvalidArgument
from elbowroom.keep.loops.body import Body, Grads, Inputs, Tensors
from elbowroom.keep.loops.careful import Careful
from elbowroom.keep.loops.conditions import Conditions
from elbowroom.keep.loops.functions import Call, Engine, Forward
from elbowroom.keep.loops.history import History, Recorder, Tape
from elbowroom.keep.loops.hooks import unhooked
from elbowroom.keep.loops.mixed import MOST_CELLS, Mixed
from elbowroom.keep.loops.options import Store, read_choices, read_steps
from elbowroom.keep.loops.parameters import (
    find_parameters,
    refuse_changed,
    refuse_dependent,
    refuse_time_first,
)
from elbowroom.keep.loops.pilot import Pilot, try_out
from elbowroom.keep.loops.plain import is_transformed, run_plainly
from elbowroom.keep.loops.planning import SHARE, choose, plan_history, plan_replay
from elbowroom.keep.loops.plans import Plan, Schedule
from elbowroom.keep.loops.prints import Prints
from elbowroom.keep.loops.probe import Probe, Probed, feed, relative_error
from elbowroom.keep.loops.replay import Replay, Until
from elbowroom.keep.loops.report import Report, report_of, warn_plain, why_plain
from elbowroom.keep.loops.slots import LoopWarning
from elbowroom.keep.loops.structure import flatten
from elbowroom.keep.surroundings import random_state, set_random_state


@opaque
def loop(
    step: Callable[..., Any],
    state: Any,
    steps: int | None = None,
    *,
    inputs: Any = None,
    outputs: bool = False,
    parameters: Any = (),
    until: Until | None = None,
    memory: str | float | None = None,
    slots: int | tuple[int, int] | None = None,
    store: Store | None = None,
    schedule: Schedule | None = None,
    tolerance: float = 0.0,
) -> Any:
    """Apply a step again and again; gradients flow through, in bounded memory.

    Args:
        step: `step(state)` returns the next state. With `inputs`, it is called `step(state, x)`; a
            step that takes a second argument without them gets the number of the step. It may be a
            module. What it does is done again in backward: it should depend on nothing but its
            arguments, parameters and torch's random numbers, which are drawn again the same.
        state: A tensor, or a tuple, list, dict or dataclass of tensors.
        steps: How often; may be left out with `until` or `inputs`.
        inputs: One for each step: a tensor whose first dimension counts the steps, or a tuple, dict
            or dataclass of such; or a list or range of anything that needs no gradient.
        outputs: If true, `step` returns `(state, output)`, and the outputs of all steps are
            returned with the last state, stacked along a new first dimension.
        parameters: Tensors besides state and inputs whose gradients are wanted, or modules that
            have them. Those of a step that is a module are found by themselves.
        until: Called with each new state; the loop ends when it returns true.
        memory: The most that is kept for backward, such as "500 MB". None keeps everything, as
            plain autograd does.
        slots: Instead of `memory`, how many states may be kept at a time; or a pair, for memory
            and for disk.
        store: Where: "memory", "disk" or a folder for slots; "encoded" or an `Encoding` for a
            history. Decided by `memory` and `tolerance` if left out.
        schedule: Of slots: "revolve", "periodic", or "online" for a length that is not known;
            "mixed" where the tape of a step is no larger than a state.
        tolerance: The relative error that gradients may have; 0 makes them exact.

    Returns:
        The last state; with `outputs`, the last state and all outputs.
    """
    made = Loop(
        step,
        parameters=parameters,
        outputs=outputs,
        memory=memory,
        slots=slots,
        store=store,
        schedule=schedule,
        tolerance=tolerance,
    )
    made._count_as(step)
    return made(state, steps, inputs=inputs, until=until)


class Loop:
    """The same, for a step that is used many times: what was measured is remembered.

    `plan` says what is kept of the last call, and `report` what that took.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        *,
        parameters: Any = (),
        outputs: bool = False,
        memory: str | float | None = None,
        slots: int | tuple[int, int] | None = None,
        store: Store | None = None,
        schedule: Schedule | None = None,
        tolerance: float = 0.0,
        probe_every: int = 8,
    ) -> None:
        """`probe_every`: of how many calls with an encoded history one is measured; 0 for none."""
        if not callable(step):
            raise InvalidArgument(f"step must be a function or module, got {type(step).__name__}")
        if isinstance(step, nn.RNNCellBase):
            raise InvalidArgument(
                f"a {type(step).__name__} takes its input first and its state second, and a step "
                "the other way round: pass step=lambda state, x: cell(x, state), parameters=cell"
            )
        refuse_time_first(step)
        if isinstance(probe_every, bool) or not isinstance(probe_every, int) or probe_every < 0:
            raise InvalidArgument(f"probe_every must be a number from 0 on, got {probe_every!r}")
        # A generator, such as model.parameters(), can be gone through once.
        self._given = list(parameters) if isinstance(parameters, Iterator) else parameters
        self._step, self._outputs = step, outputs
        self._asked = read_choices(memory, slots, store, schedule, tolerance)
        self.relative = self._asked.encoding.relative or SHARE * tolerance
        """The bound of the history, relative to the range of each frame."""
        self.plan: Plan | None = None
        self.engine: Engine | None = None
        self.probed: list[Probed] = []
        """What was measured of the gradient's error, call by call."""
        self._probe, self._probe_every, self._calls = Probe(), probe_every, 0
        self._is_single = False
        self._key: Any = None
        self._known: tuple[Any, Plan] | None = None

    @opaque
    def __call__(
        self,
        state: Any,
        steps: int | None = None,
        *,
        inputs: Any = None,
        until: Until | None = None,
    ) -> Any:
        """Run the loop."""
        tensors, structure = flatten(state, "state")
        if not tensors:
            raise InvalidArgument("the state has no tensor: give what changes from step to step")
        given = Inputs(inputs)
        length = read_steps(steps, given.length, until)
        body = Body(self._step, structure, given, has_outputs=self._outputs)
        parameters = find_parameters(self._step, self._given)
        everything = [*tensors, *given.tensors, *parameters]
        if not self._asked.is_bounded or not torch.is_grad_enabled() or is_transformed():
            self.plan, self.engine = Plan(kind="full", reason=why_plain(self._asked)), None
            if self._asked.tolerance and not self._asked.is_bounded:
                warn_plain("tolerance= alone bounds nothing: add memory= or store='encoded'")
            after, stacked = run_plainly(body, tensors, given.tensors, length, until)
            return self._pack(body, after, stacked)
        refuse_dependent(parameters)
        body.conditions = Conditions(self._step, self._given, everything)
        body.prints = Prints(body.conditions.explain)
        self.plan, pilot = self._choose(body, tensors, given.tensors, parameters, length)
        if self.plan.kind == "full":
            self.engine = None
            if self._asked.is_encoded and length != 0:
                warn_plain(self.plan.reason)
            after, stacked = run_plainly(body, tensors, given.tensors, length, until)
            return self._pack(body, after, stacked)
        body.known = parameters
        self.engine = self._make_engine(body, length, until, pilot)
        call = Call(
            engine=self.engine,
            body=body,
            plan=self.plan,
            states=len(tensors),
            inputs=len(given.tensors),
            parameters=parameters,
        )
        # Where results are dropped and backward never comes, what was kept for it goes with them.
        weakref.finalize(call, self.engine.close).atexit = False
        results: Any = Forward.apply(call, *everything)
        return self._pack(body, list(results[: len(tensors)]), list(results[len(tensors) :]))

    def _count_as(self, step: Callable[..., Any]) -> None:
        """This is one call of many of `loop` with the same step: only some of them are measured."""
        self._is_single = True
        key = getattr(step, "__code__", type(step))
        self._calls = _calls.get(key, 0)
        self._probe = Probe(self._calls)
        if len(_calls) < _MOST_COUNTED:
            _calls[key] = self._calls + 1

    @property
    def report(self) -> Report | None:
        """What the last call has taken; None before the first."""
        return None if self.plan is None else report_of(self.plan, self.engine)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and files are of the loop, and not of what its last call has kept."""
        return {**vars(self), "engine": None, "_probe": Probe()}

    def measure(
        self,
        state: Any,
        steps: int | None,
        score: Callable[[Any], Tensor],
        *,
        inputs: Any = None,
        slots: int = 32,
    ) -> float:
        """The gradient's relative error in the whole: this loop's against an exact one's.

        `score` makes one number of what the loop returns.
        """
        exact = Loop(
            self._step, parameters=self._given, outputs=self._outputs, slots=slots, probe_every=0
        )
        asked = find_parameters(self._step, self._given)
        tensors = [*flatten(state, "state")[0], *Inputs(inputs).tensors]
        asked += [t for t in tensors if t.requires_grad]
        if not asked:
            raise InvalidArgument("nothing requires a gradient: there is no error to measure")
        found: list[list[Tensor]] = []
        for run in (exact, self):
            random = random_state()
            total = score(run(state, steps, inputs=inputs))
            grads: Any = torch.autograd.grad(total, asked, allow_unused=True)
            found.append([g for g in grads if g is not None])
            if run is exact:
                set_random_state(random)
        return relative_error(*found)

    def _pack(self, body: Body, state: Tensors, stacked: Tensors) -> Any:
        after = body.structure.build(state)
        if not self._outputs:
            return after
        known = body.output_structure
        return after, None if known is None else known.build(stacked)

    def _choose(
        self,
        body: Body,
        state: Tensors,
        inputs: Tensors,
        parameters: Tensors,
        length: int | None,
    ) -> tuple[Plan, Pilot | None]:
        if self._asked.slots is not None:
            usual: Schedule = "revolve" if length is not None else "online"
            self._refuse_large_table(length)
            inner, outer = self._asked.slots
            kept = Plan(
                kind="replay",
                slots=inner,
                disk_slots=outer,
                folder=self._asked.folder,
                schedule=usual if self._asked.schedule is None else self._asked.schedule,
            )
            return kept, None
        if length == 0:
            return Plan(kind="full", reason="there is no step"), None
        memory = self._asked.memory_bytes
        looks = [_look_of(t) for t in (*state, *inputs, *parameters)]
        self._key = length, body.conditions.key, looks
        if self._known is not None and self._known[0] == self._key:
            return self._known[1], None
        with unhooked(parameters), refuse_changed(parameters):
            pilot = try_out(body, state, inputs, parameters, is_counted=memory is not None)
        body.conditions.statistics.settle()
        if self._asked.is_encoded:
            room = 2**62 if memory is None else memory
            plan = plan_history(pilot, length, room)
            if plan is not None:
                return plan, pilot
        if memory is None:
            why = "is too small to be encoded" if pilot.is_seen else "is hidden by torch.func"
            return Plan(kind="full", reason=f"what a step keeps {why}"), pilot
        plan = choose(pilot, length, memory_bytes=memory, tolerance=self._asked.tolerance)
        if plan.kind != "history":  # which has to know the very tensors that are constants
            self._known = self._key, plan
        return plan, pilot

    def _refuse_large_table(self, length: int | None) -> None:
        asked, slots = self._asked, self._asked.slots
        if asked.schedule == "mixed" and slots and (length or 0) * slots[0] > MOST_CELLS:
            raise InvalidArgument(
                f"schedule='mixed' is for up to {MOST_CELLS:,} steps times slots, and {length:,} "
                f"steps with {slots[0]} slots are more: leave schedule out"
            )

    def _make_engine(
        self, body: Body, length: int | None, until: Until | None, pilot: Pilot | None
    ) -> Engine:
        plan = self.plan
        assert plan is not None
        if plan.kind == "replay":
            if plan.schedule == "mixed" and length and until is None:
                return Mixed(body, plan, length)
            return Replay(body, plan, length, until)
        if plan.kind == "tape":
            return History(body, plan, length, until, make_recorder=Tape)
        assert pilot is not None

        def record() -> Recorder:
            return Recorder(
                self.relative,
                self._asked.encoding.every,
                plan.history_bytes,
                pilot.constants,
                self._asked.encoding.coder,
                sites=pilot.tape_tensors,
                length=length,
            )

        history = self._with_probe(body, plan, length, until, record)
        if self._asked.memory_bytes is None:
            return history
        memory = self._asked.memory_bytes

        def keep_states() -> Replay:
            states = plan_replay(pilot, length, memory)[0]
            self.plan = replace(
                states, reason=f"a history took more than it may; {states.reason} instead"
            )
            self._known = self._key, self.plan
            return Replay(body, states, length, until)

        return Careful(history, keep_states, body)

    def _with_probe(
        self,
        body: Body,
        plan: Plan,
        length: int | None,
        until: Until | None,
        record: Callable[[], Recorder],
    ) -> History:
        self._calls += 1
        if not self._probe_every or (self._calls - 1) % self._probe_every or until is not None:
            return History(body, plan, length, until, make_recorder=record)
        self._probe.arm(length)

        def exact(window: Body, steps: int) -> Engine:
            slots = steps if self._asked.memory_bytes is None else 4  # the budget holds here too
            return Replay(window, Plan(kind="replay", slots=slots), steps, None)

        def lossy(window: Body, steps: int) -> Engine:
            return History(window, plan, steps, None, make_recorder=record)

        def ended(inputs: Tensors, grads: Grads, parameters: Tensors) -> None:
            error = self._probe.measure(body, exact, lossy, inputs, grads, parameters)
            if error is not None:
                self._heed(error)

        return History(
            body, plan, length, until, make_recorder=record, look=self._probe.look, ended=ended
        )

    def _heed(self, error: float) -> None:
        """What the probe has found decides the bound of the next call."""
        probe = self._probe
        self.probed.append(
            Probed(start=probe.start, steps=probe.steps, error=error, relative=self.relative)
        )
        if not self._asked.tolerance or self._asked.encoding.relative is not None:
            return
        tolerance = self._asked.tolerance
        self.relative = feed(self.relative, error, tolerance)
        if error > tolerance:
            kept = f"kept to {self.relative:.2g} of their range"
            advice = f"from now on values of the history are {kept}"
            if self._is_single:
                advice = f"with an er.Loop, values of the next history are {kept}"
            warnings.warn(
                f"the gradient of steps {probe.start} to {probe.start + probe.steps} is off by "
                f"{error:.2g}, more than the tolerance of {tolerance:g}: {advice}",
                LoopWarning,
                stacklevel=2,
            )


# Calls of `loop`, by the code of the step.
_calls: dict[Any, int] = {}
_MOST_COUNTED = 256


def _look_of(tensor: Tensor) -> tuple[Any, ...]:
    """What decides how much a step takes."""
    return tuple(tensor.shape), tensor.dtype, tensor.device, tensor.requires_grad
