"""The context manager around a forward pass."""

import functools
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from elbowroom.codec.opaque import opaque
from elbowroom.keep.activations.budget import Budget
from elbowroom.keep.activations.checks import check, check_optimizer
from elbowroom.keep.activations.compiled import Regions, attend, tell
from elbowroom.keep.activations.correction import Correction
from elbowroom.keep.activations.faults import Faults
from elbowroom.keep.activations.gauge import left_bytes
from elbowroom.keep.activations.hooks import Around, is_recomputed
from elbowroom.keep.activations.laps import Lap
from elbowroom.keep.activations.ledger import Ledger, say_bytes
from elbowroom.keep.activations.limits import Limits
from elbowroom.keep.activations.memory import memory_of
from elbowroom.keep.activations.meter import Measured, Meter
from elbowroom.keep.activations.moments import Moments
from elbowroom.keep.activations.noise import Noise
from elbowroom.keep.activations.observer import Observer
from elbowroom.keep.activations.pace import Pace
from elbowroom.keep.activations.passes import SMALL_BYTES, Pass
from elbowroom.keep.activations.policy import BOLD, CAREFUL, Policy
from elbowroom.keep.activations.recompute import recomputed
from elbowroom.keep.activations.rehearsal import Rehearsal
from elbowroom.keep.activations.rules import Evidence, Rule, decide
from elbowroom.keep.activations.schedule import Clock, is_due, is_metered, is_rare
from elbowroom.keep.activations.shards import Gradients, working_parameters
from elbowroom.keep.activations.sites import Names, Sites
from elbowroom.keep.activations.tally import Tally
from elbowroom.keep.activations.trees import tensors_in
from elbowroom.keep.activations.untouched import Untouched
from elbowroom.keep.activations.watch import Arguments, Functions, Modules, abandon
from elbowroom.sizes import parse_bytes

_log = logging.getLogger("elbowroom")

P = ParamSpec("P")
R = TypeVar("R")


class Activations:
    """Trains a model in less memory: what autograd keeps for backward is encoded.

    Around the forward pass, of any model in any loop:

        room = Activations(model, tolerance=0.1)
        with room:
            loss = loss_fn(model(x), target)
        loss.backward()
        print(room.ledger)

    Args:
        model: Its parameters, buffers, random numbers and statistics stay as they are.
        tolerance: The share of the gradient's own variance, from batch to batch, that errors may
            add. 0 means exact: gradients have the same bits as without, and only what costs no
            error is saved. Shares by the names of modules, such as {"": 0.1, "head": 0.02}, hold
            for the gradients of their parameters; "" stands for all others.
        exact: Modules, or names of modules, that save their tensors without errors.
        memory: A budget for the whole process (on a GPU, for what torch holds there), such as
            "6 GB". From the measured course of a step it follows which tensors are kept as they
            are, encoded or put on disk, and which parts of the model run again in backward, so that
            the step is as fast as the budget allows. BudgetUnreachable names the nearest budget
            that can be met.
        overhead: What a step may take more than plain, as a share: 0.25 is a quarter more. Within
            it the fewest bytes are held. None: the fewest bytes, however long it takes.
        optimizer: Of the Adam family, it tells the gradient's variance better than the running
            estimate that is made without one; its moments are read, nothing is changed.
        rule: "variance" is the one above. "certified" lets no element of a weight's gradient move
            further than the tolerance times the gradient's root mean square; "comet" holds their
            standard deviation to 0.01 of the mean momentum. Both encode inputs of layers with
            weights only, whose errors do not travel.
        refresh: Passes between two looks at the gradients, from which the bounds follow. The first
            looks come sooner.
        meter: Passes between two measurements of the true error; 0 means never.
        seed: Of the dither.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        tolerance: float | Mapping[str, float] = 0.1,
        exact: Iterable[str | nn.Module] = (),
        memory: str | int | float | None = None,
        overhead: float | None = 0.25,
        optimizer: torch.optim.Optimizer | None = None,
        rule: Literal["variance", "comet", "certified"] = "variance",
        refresh: int = 100,
        meter: int = 400,
        seed: int = 0,
    ) -> None:
        check(model, overhead, rule, refresh, meter, seed)
        check_optimizer(model, optimizer)
        self.model = model
        self._limits = Limits(model, tolerance, exact)
        self.tolerance = self._limits.tolerance
        self._refresh = refresh
        self._meter_every = meter
        self._rule = Rule(rule)
        self._policy = Policy(
            is_exact=self._limits.is_exact,
            is_local=self._rule is not Rule.VARIANCE,
            seed=seed,
            # Before the first look nobody knows what an error reaches.
            first=0.0 if self._limits.has_zeros else CAREFUL if memory is None else BOLD,
            limits=self._limits,
        )
        self._sites = Sites()
        self._names = Names(model)
        self._noise = Noise(None if optimizer is None else Moments(optimizer))
        self._step = 0
        self._tally = self._retried = Tally()
        self._events: list[str] = []
        self._faults = Faults()
        self._gradients = Gradients(self._observe)
        self._correction = Correction(
            self.tolerance, self._tell, is_tight=self._rule is Rule.VARIANCE
        )
        self._meter: Meter | None = None
        self._clock = Clock()
        self._measuring = False
        self._is_closed = False
        self._undo: Callable[[], None] | None = None
        self._local = threading.local()
        self._seconds: dict[str, float] = {}
        self._period = refresh if self._rule is Rule.VARIANCE and meter and self.tolerance else 0
        start = functools.partial(self._start, None)
        self._rehearsal = Rehearsal(
            model,
            self._noise,
            self.tolerance,
            self._trial,
            start,
            self._tell,
            self._correction.readings,
        )
        self._budget = None if memory is None else Budget(model, parse_bytes(memory), self._tell)
        self._memory = memory_of(model) if memory is None else None
        self._pace = Pace(overhead if memory is None else None)

    def __repr__(self) -> str:
        how = [str(self._limits)]
        if self._budget is not None:
            how.append(f"memory={say_bytes(self._budget.limit_bytes)}")
        elif self._pace.overhead is not None:
            how.append(f"overhead={self._pace.overhead:g}")
        head = f"Activations({self.model.__class__.__name__}, {', '.join(how)})"
        if self._is_closed:
            return f"{head}: closed after step {self._step}"
        if self._pace.is_aside:
            return f"{head}: passes are left alone, see ledger.events; {self.ledger.brief()}"
        look = next(s for s in itertools.count(self._step + 1) if is_due(s, self._refresh))
        looks = "" if self._policy.is_exact else f", next look at step {look}"
        return f"{head}: {self.ledger.brief()}{looks}"

    @property
    def ledger(self) -> Ledger:
        """Of the last pass."""
        readings, events = self._correction.readings, [*self._events, *self._faults.events]
        return self._tally.to_ledger(self._step, readings, events, self._pace)

    @property
    def last_pass(self) -> Tally:
        """What is counted of the last pass, while it lives and after."""
        return self._tally

    @property
    def moments(self) -> tuple[tuple[float, str, int, int], ...]:
        """Of the last pass: seconds (perf_counter), name, bytes saved plainly, bytes held."""
        return tuple(self._tally.moments)

    @opaque
    def __enter__(self) -> "Activations":
        frames = self._frames()
        stack = ExitStack()
        if not (frames or is_recomputed()):
            with self._faults.around("a pass was left alone, since beginning it"):
                stack = self._open()
        frames.append(stack)
        return self

    @opaque
    def __exit__(self, *ending: Any) -> None:
        stack = self._frames().pop()
        with self._faults.around("a pass has no end in the ledger, since ending it"):
            stack.__exit__(*ending)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: every call of the function is a pass."""

        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return wrapped

    def install(self) -> None:
        """Make every forward of the model a pass, without a `with` around it.

        What is computed after the model, such as the loss, is outside.
        """
        if self._undo is None:
            self._undo = attend(
                self.model,
                self._enter_forward,
                self._exit_forward,
                functools.partial(tell, self._local),
            )

    def remove(self) -> None:
        """Undo `install`."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    @opaque
    def _enter_forward(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        frames = self._frames()
        if self._measuring or frames or is_recomputed():
            frames.append(ExitStack())
            return None
        self.__enter__()
        # Hooks that the pass has put on the model come too late for this call.
        if self._local.untouched is None:
            self._pace.pass_by().note_arguments(tensors_in((args, kwargs)))
        else:
            self._local.untouched.add(tensors_in((args, kwargs)))
            self._local.regions().join(args, kwargs)
        if self._meter is not None:
            self._meter.note_call(args, kwargs)
        return Arguments.of(
            args, functools.partial(abandon, frames, frames[0], get_ident())
        ), kwargs

    @opaque
    def _exit_forward(self) -> None:
        if self._frames():
            self.__exit__(None, None, None)

    def close(self) -> None:
        """Take every hook off the model; graphs that are alive can still run backward."""
        self._is_closed = True
        self.remove()
        self._gradients.remove()
        self._disarm()
        self._rehearsal.disarm()
        self._rest()

    def share_budget(self, limit_bytes: int, *, holds: bool) -> Budget | None:
        """Of rooms that share a process's budget one has to meet it; the others only encode."""
        self._policy.first = 0.0 if self._limits.has_zeros else BOLD
        self._rest()
        self._budget = Budget(self.model, limit_bytes, self._tell) if holds else None
        self._memory = None if holds else memory_of(self.model)
        return self._budget

    def _rest(self) -> None:
        for each in (self._budget, self._memory):
            if each is not None:
                each.rest()

    def _frames(self) -> list[ExitStack]:
        if not hasattr(self._local, "frames"):
            self._local.frames = []
        return self._local.frames

    def _open(self) -> ExitStack:
        """A new pass in this thread."""
        self._is_closed = False
        observer = None
        if not self._measuring:
            if self._budget is None and self._step > 0 and self._memory is not None:
                self._memory.before_pass(self._tally.saved_bytes)
            self._step += 1
            self._pace.next_pass(self._tell)
            self._disarm()
            if self._pace.is_aside and not self._rehearsal.has_compiled:
                aside, self._local.untouched = self._pace.pass_by(), None
                self._tally = Tally(plain_bytes=aside.plain_bytes)
                return aside.open(self.model)
            self._rehearsal.begin(self._step, 0 if self._budget else self._period)
            has_calmed = self._rule is Rule.VARIANCE and self._noise.has_calmed(self._step)
            is_watched = is_due(self._step, self._refresh) or has_calmed
            self._clock.begin_pass(has_look=is_watched)
            if self._budget is not None:
                self._budget.next_pass(self._seconds, is_watched=is_watched)
            if not self._policy.is_exact:
                self._gradients.watch(self.model)
                if is_watched:
                    what = "bounds are what they were, since deciding on them"
                    decided = self._faults.guarded(what, self._decide)
                    observer = Observer(
                        decided,
                        working_parameters(self.model),
                        is_certified=self._rule is Rule.CERTIFIED,
                    )
                self._arm_meter(is_watched=is_watched)
        return self._start(observer)

    def _arm_meter(self, *, is_watched: bool) -> None:
        """Where it is its turn, or has none yet to find out how this model's batch is cut."""
        # It would make torch compile the model for parts of batches too.
        every, meter = 0 if self._rehearsal.has_compiled else self._meter_every, self._meter
        is_turn = is_rare if self._clock.is_dear else is_metered
        is_wanted = every and (is_turn(self._step, every) or (meter and meter.is_pending))
        if not is_wanted:
            return
        if meter is None:
            meter = self._meter = Meter(
                self.model, self._trial, self._retry, self._report, self._fits, self._tell
            )
        if is_watched and min(self._refresh, every) > 1:
            # One look at a time.
            meter.is_pending = True
        else:
            meter.arm(may_be_whole=self._budget is None and is_rare(self._step, every))

    def _fits(self, part: float) -> bool:
        """Whether a part of the batch can run plainly, with its gradients, in the memory left."""
        saved_bytes = self._tally.saved_bytes
        weights_bytes = sum(p.numel() * p.element_size() for p in self.model.parameters())
        nbytes = int(1.5 * part * saved_bytes) + weights_bytes
        if self._budget is not None:
            return self._budget.lend(nbytes + weights_bytes)
        return part < 1 or nbytes <= left_bytes(self.model)

    def _retry(self, part: float) -> ExitStack:
        """For the meter: what is encoded of a whole batch is encoded of a part of it too."""
        return self._start(None, part)

    def _start(self, observer: Observer | None, part: float = 1.0) -> ExitStack:
        self._policy.step, self._policy.is_sampling = self._step, observer is not None
        lap, budget = self._pace.start(is_trial=self._measuring), self._budget
        timeline = None if budget is None or self._measuring else budget.timeline
        tally = Tally(is_trial=self._measuring, timeline=timeline)
        if observer is not None:
            observer.totals, observer.note_s = tally.so_far, lap.note_look
        now = Pass(
            self._sites,
            self._policy,
            Untouched(self.model),
            None if observer is None else observer.listen,
            tally,
            int(SMALL_BYTES * part),
            budget,
            self._memory,
            self._faults,
            self._pace,
            lap,
        )
        if self._measuring:
            self._retried = tally
        else:
            self._tally = now.tally
            self._local.untouched = now.untouched
        with ExitStack() as stack:
            self._watch(stack, now, observer)
            lap.begin_forward()
            return stack.pop_all()

    def _watch(self, stack: ExitStack, now: Pass, observer: Observer | None) -> None:
        """Have torch tell the pass what runs, until the stack is closed."""
        modules = Modules(self.model, self._names, now)
        self._seconds = self._seconds | modules.seconds if self._measuring else modules.seconds
        if self._budget is not None:
            stack.enter_context(recomputed(self._budget.modules))
        stack.callback(now.finish)
        stack.callback(modules.remove)
        modules.install()
        around = Around(now.pack, now.unpack)
        stack.enter_context(around)
        if not (self._measuring or self._rehearsal.has_compiled):
            now.leave = functools.partial(self._leave, around, observer, now.lap)
        functions = stack.enter_context(Functions(now, modules))
        regions = Regions(
            now, modules, functions, self._policy, self._disarm, self._rehearsal, self.model
        )
        self._local.regions = weakref.ref(regions)
        stack.enter_context(regions.patched(self.model))
        stack.callback(regions.close)

    def _leave(self, around: Around, observer: Observer | None, lap: Lap) -> bool:
        """Let the rest of a forward, and the passes to come, be plain."""
        if not around.leave():
            return False
        if observer is not None:
            observer.cancel()
        self._disarm()
        self._pace.leave(lap, self._tell)
        return True

    def _disarm(self) -> None:
        if self._meter is not None:
            self._meter.disarm()

    def _observe(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        if self._measuring or self._pace.is_aside:
            return
        with self._faults.around("a gradient was not noted, since reading it"):
            with self._pace.gradient_read():
                self._noise.observe(parameter, gradient, self._step)
                self._rehearsal.observe(parameter, gradient)

    def _decide(self, observer: Observer) -> None:
        if self._is_closed:
            return
        evidence = Evidence.of(observer, working_parameters(self.model), self._noise)
        self._noise.mark()
        # Compiled parts have their own share of it.
        tolerance = self.tolerance * (1 - self._rehearsal.share)
        for decision in decide(
            self._rule, evidence, tolerance, self._correction.trust, self._limits.by_parameter()
        ):
            site = decision.site
            site.bound = decision.bound
            site.share, site.part_share = decision.share, decision.part_share
        self._pace.renew()

    @contextmanager
    def _trial(self) -> Iterator[None]:
        """While the meter runs the model: neither ledger, noise nor installed hooks take part.

        A model that cannot run on a part of its batch costs the meter, not the user's backward.
        """
        self._measuring = True
        end = self._clock.begin_meter()
        try:
            yield
        except Exception as error:
            self._meter_every = 0
            self._tell(f"the meter is off, its trial failed: {error}")
            _log.warning(self._events[-1])
        finally:
            self._measuring = False
            end()
            if self._budget is not None:
                self._budget.take_back()

    def _report(self, measured: Measured) -> None:
        """The meter has measured a part of the batch."""
        variance = sum(self._noise.variance(p) or 0.0 for p in self.model.parameters())
        names = {row.name for row in self._retried.rows if row.bound > 0}
        used = [site for site in self._sites if site.name in names and site.bound is not None]
        self._correction.take(self._step, measured, variance, used, list(self._sites))

    def _tell(self, event: str) -> None:
        self._events.append(f"step {self._step}: {event}")
        _log.info(event)
