"""`Checkpointer`: a run's state in a store, saved beside the training, resumed by itself."""

import contextlib
import inspect
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch.utils.data import DataLoader

from elbowroom.codec import Bound
from elbowroom.errors import (
    BudgetUnreachable,
    InvalidArgument,
)
from elbowroom.host import available_bytes
from elbowroom.store.checkpoint.copier import Copier
from elbowroom.store.checkpoint.ending import register, unregister
from elbowroom.store.checkpoint.forking import Choice, LiveBuffer, fork
from elbowroom.store.checkpoint.frequency import Pace
from elbowroom.store.checkpoint.journal import Journal
from elbowroom.store.checkpoint.loading import follow_loader
from elbowroom.store.checkpoint.local import LocalPlace
from elbowroom.store.checkpoint.lossy import read_tolerance
from elbowroom.store.checkpoint.objects import place_at
from elbowroom.store.checkpoint.optimizers import describe_optimizers
from elbowroom.store.checkpoint.outages import Outages, plain_error
from elbowroom.store.checkpoint.persister import Persister
from elbowroom.store.checkpoint.ranks import Ranks
from elbowroom.store.checkpoint.resuming import Resuming
from elbowroom.store.checkpoint.retention import Keep, read_keep
from elbowroom.store.checkpoint.signals import Notice
from elbowroom.store.checkpoint.snapshot import Buffer, Snapshot, lay_out
from elbowroom.store.checkpoint.sources import check_names, check_sources, read_randomness
from elbowroom.store.checkpoint.state import flatten
from elbowroom.store.checkpoint.streams import loader_below
from elbowroom.store.checkpoint.voice import tell, warn


class Checkpointer:
    """Saves a run every few steps and finds its way back.

    Whatever has `state_dict` and `load_state_dict` can be given by a name of its own. Under
    `torch.distributed`, what is given is taken to be the same on all ranks and is written by the
    first; objects named in `per_rank`, random numbers and the positions of loaders are each rank's
    own.
    """

    def __init__(
        self,
        where: str | Path,
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        loader: Any = None,
        max_overhead: float = 0.035,
        every: int | None = None,
        mean_time_between_failures_s: float | None = None,
        keep: int | Keep | None = 3,
        far: str | Path | None = None,
        keep_far: int | Keep | None = None,
        tolerance: float | Mapping[str, Bound | float] = 0,
        resume: bool = True,
        handle_signals: bool = True,
        per_rank: tuple[str, ...] = (),
        in_flight: int = 1,
        lazy: bool | None = None,
        snapshot: str = "auto",
        hash: str = "xxh3-128",
        storage_options: Mapping[str, Any] | None = None,
        **further: Any,
    ) -> None:
        loaders = {n: follow_loader(one) for n, one in further.items() if _is_loader(one)}
        further |= loaders
        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, **further}
        settings = [n for n in inspect.signature(Checkpointer).parameters if n not in given]
        self._sources = check_sources({k: v for k, v in given.items() if v is not None}, settings)
        check_names(self._sources, per_rank)
        self._process = os.getpid()
        if not isinstance(in_flight, int) or in_flight < 1:
            raise InvalidArgument(f"in_flight must be a number from 1 on, got {in_flight!r}")
        if far is None and keep_far is not None:
            raise InvalidArgument("keep_far= says what stays in far=, which was not given: give it")
        self._loader = None if loader is None else follow_loader(loader)
        self._per_rank = {"randomness", "loader", *loaders, *per_rank}
        self._pace = Pace(
            max_overhead=max_overhead,
            every=every,
            mean_time_between_failures_s=mean_time_between_failures_s,
        )
        self._ranks = Ranks()
        # A forked process can write to a disk, and not beside other ranks or over a network.
        is_copied = self._ranks.size > 1 or not isinstance(
            place_at(where, options=storage_options), LocalPlace
        )
        is_copied = is_copied or tolerance != 0
        if is_copied and snapshot == "fork":
            raise InvalidArgument(
                "snapshot='fork' is for a single process, a folder and tolerance=0: leave it out"
            )
        self._choice = Choice("copy" if is_copied and snapshot == "auto" else snapshot)
        self._copier = Copier(self._optimizers() if self._is_lazy(lazy) else ())
        self._steps = self._saved = 0
        self._last_step_at: float | None = None
        self.resumed_from: int | None = None
        self.events: list[str] = []
        self._is_rule_checked = self._is_begun = self._is_closed = self._is_short = False
        self._outages = Outages(where, self._warn, self._note)
        self._rule = read_tolerance(tolerance)
        self._notice = Notice()
        with contextlib.ExitStack() as ends:
            ends.callback(self._copier.close)
            self._journal = Journal(
                where,
                ranks=self._ranks,
                keep=read_keep(keep),
                far=far,
                keep_far=None if keep_far is None else read_keep(keep_far),
                hash_name=hash,
                bound_of=self._rule,
                options=storage_options,
            )
            ends.callback(self._journal.close)
            self._persister = Persister(
                *(self._journal.record, in_flight + 1, self._journal.adopt, self._journal.tidy)
            )
            self._journal.clearing.is_over = lambda: self._notice.number != 0
            self._journal.recycle = self._persister.give_back
            self._resuming = Resuming(
                *(self._journal, self._ranks, self._sources, self._loader),
                per_rank=frozenset(self._per_rank),
            )
            if resume:
                self._resume()
            self._journal.wait_for_stores(is_patient=False)
            if handle_signals:
                self._notice.listen()
            self._end = register(self, _finish)
            ends.pop_all()

    @property
    def steps(self) -> int:
        """How many steps the run has made, those before an interruption included."""
        return self._steps

    @property
    def reasoning(self) -> str:
        """Why checkpoints are taken as often as they are."""
        return self._pace.explain()

    def step(self) -> bool:
        """One iteration is done. Return whether it was saved."""
        self._check_usable()
        seconds = None
        if self._last_step_at is not None:
            seconds = time.perf_counter() - self._last_step_at
        self._pace.step(seconds, is_disturbed=self._persister.is_busy or self._copier.is_busy)
        self._steps += 1
        self._tell_outcomes()
        if self._ranks.is_first and (said := self._pace.news()) is not None:
            tell(said)
        is_due = self._ranks.is_first and self._pace.is_due() and self._persister.has_buffer()
        signal, due = self._ranks.most(self._notice.number, int(is_due))
        if signal:
            self._journal.leave_rest()
            self._save(sync=True)
            self.close(save=False)
            raise SystemExit(0)
        if due:
            self._save()
        self._last_step_at = time.perf_counter()
        return bool(due)

    def save(self, *, sync: bool = False) -> None:
        """Take a snapshot now; with `sync`, come back when it is durable."""
        self._check_usable()
        self._save(sync=sync)

    def wait(self) -> None:
        """Until all that was begun is durable; raises what went wrong with it."""
        self._check_usable()
        self._copier.wait()
        self._persister.wait()
        self._tell_outcomes(is_raised=True)

    def restore(self, step: int | None = None) -> int:
        """Go back to a checkpoint, the newest or that of a step; return its step."""
        self._check_usable()
        self._copier.wait()
        self._persister.wait()
        self._tell_outcomes()
        self._journal.wait_for_stores(is_patient=True)
        found = self._resume(step)
        self._journal.wait_for_stores(is_patient=False)
        if found is None:
            raise InvalidArgument(f"there is no checkpoint in {self._journal.where} to restore")
        return found

    def close(self, *, save: bool = True) -> None:
        """Save what has been done since, finish what is being written, let go of the store."""
        if self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = True
        unregister(self._end)
        with contextlib.ExitStack() as ends:
            # From the last to the first, whatever goes wrong with any of them. Signals come last:
            # one that comes now would take the process away from what is being written.
            ends.callback(self._notice.ignore)
            ends.callback(self._journal.close)
            ends.callback(self._persister.close)
            ends.callback(self._copier.close)
            if save and self._steps != self._saved:
                self._save()
        self._tell_outcomes(is_last=True)
        if save and self._notice.number:
            raise SystemExit(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._journal.hurry()
        # After an error the state may be that of half a step.
        self.close(save=kind is None)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Two of them would write to one folder."""
        raise TypeError("a Checkpointer cannot be copied or pickled: make another where it is used")

    def _check_usable(self) -> None:
        if os.getpid() != self._process:
            raise InvalidArgument(
                f"this Checkpointer belongs to process {self._process}, and a forked one cannot "
                "use it: make one there, for another folder"
            )
        if self._is_closed:
            raise InvalidArgument("this Checkpointer is closed: make another one")

    def _save(self, *, sync: bool = False) -> None:
        start = time.perf_counter()
        self._copier.wait()
        self._take()
        self._saved = self._steps
        self._pace.stalled(time.perf_counter() - start)
        if not sync:
            return
        problem: Exception | None = None
        try:
            self.wait()
        except Exception as error:  # others wait to hear of it
            problem = error
        (is_broken,) = self._ranks.most(int(problem is not None))
        if problem is not None:
            raise problem
        if is_broken:
            raise OSError(f"the checkpoint of step {self._steps} was not saved on another rank")

    def _begin(self) -> None:
        """See to it that nobody is surprised by the first checkpoint."""
        self._is_begun = True
        there = self._journal.newest
        if there is not None and self.resumed_from is None:
            self._warn(
                f"{self._journal.where} has checkpoints up to step {there.step} of a run that "
                "this one does not go on from: they will go as new ones come (keep=)"
            )

    def _take(self) -> None:
        if not self._is_begun:
            self._begin()
        (number,) = self._ranks.share(self._journal.next_id())
        state = {name: s for name, s in self._state().items() if self._is_mine(name)}
        tree, tensors = flatten(state, "state")
        pieces, nbytes = lay_out(tensors)
        # Optimizers have no moments before they have made a step.
        has_all = self._steps > 0 or all(optimizer.state for optimizer in self._optimizers())
        if self._ranks.is_first and not self._is_rule_checked and has_all:
            self._is_rule_checked = True
            for name in self._rule.idle(pieces):
                self._warn(f"tolerance names {name!r}, and no object or tensor is called so")
        facts = {
            "id": f"{number:016x}",
            "torch": torch.__version__,
            **describe_optimizers(self._sources),
        }
        make = partial(Snapshot, step=self._steps, tree=tree, facts=facts, pieces=pieces)
        if self._choice.pick(tensors, self._journal.changed) == "fork":
            self._persister.wait()  # the child builds on what is committed
            live = make(buffer=LiveBuffer(tensors))
            self._persister.submit(fork(live, self._journal.put))
            return
        buffer = self._persister.take_buffer()
        try:
            if self._has_room(buffer, nbytes, tensors):
                snapshot = make(buffer=buffer)
                submit = partial(self._persister.submit, snapshot)
                self._copier.begin(tensors, pieces, buffer, submit)
                return
        except BaseException:
            self._persister.give_back(buffer)
            raise
        self._persister.give_back(buffer)
        self._persister.submit(make(buffer=LiveBuffer(tensors)))
        self._persister.wait()

    def _has_room(
        self, buffer: Buffer, nbytes: int, tensors: Sequence[tuple[str, torch.Tensor]]
    ) -> bool:
        """Whether there is memory for a copy; else the loop waits while it is written uncopied."""
        with contextlib.suppress(MemoryError, OSError):
            # A system that runs out of memory ends the process that has the most.
            if nbytes <= len(buffer.bytes) or nbytes + nbytes // 8 < available_bytes():
                buffer.reserve(nbytes)
                return True
        said = f"a copy of the state takes {nbytes:,} bytes, and that much memory is not free"
        if self._rule.is_lossy or not all(tensor.is_cpu for _, tensor in tensors):
            raise BudgetUnreachable(f"{said}: free some, or save less")
        if not self._is_short:
            self._is_short = True
            self._warn(f"{said}: the loop waits while checkpoints are written without one")
        return False

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [s for s in self._sources.values() if isinstance(s, torch.optim.Optimizer)]

    def _is_lazy(self, lazy: bool | None) -> bool:
        """Whether to copy beside the training: by default from a GPU, which computes meanwhile."""
        if lazy is not None:
            return lazy
        groups = (group for optimizer in self._optimizers() for group in optimizer.param_groups)
        return any(parameter.is_cuda for group in groups for parameter in group["params"])

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"steps": self._steps}
        for name, source in self._sources.items():
            if self._is_mine(name):
                state[name] = source.state_dict()
        if self._loader is not None:
            state["loader"] = self._loader.state_dict()
        state["randomness"] = read_randomness()
        return state

    def _is_mine(self, name: str) -> bool:
        return self._ranks.is_first or name in self._per_rank

    def _resume(self, step: int | None = None) -> int | None:
        found = self._resuming.go_back(step, self._warn)
        if found is None:
            return None
        self.resumed_from = self._steps = self._saved = found.step
        self._pace.goes_on()
        self.events.append(f"resumed from step {found.step}")
        return found.step

    def _tell_outcomes(self, *, is_raised: bool = False, is_last: bool = False) -> None:
        for outcome in self._persister.outcomes():
            if outcome.error is None:
                self._choice.saw(self._pace.persisted(outcome.seconds).added_s)
            elif is_raised:
                raise plain_error(outcome)
            self._outages.note(outcome, self._journal.newest, is_last=is_last)
        while self._journal.told:
            self._warn(self._journal.told.pop(0))

    def _warn(self, said: str) -> None:
        self.events.append(said)
        if self._ranks.is_first:
            warn(said)

    def _note(self, said: str, is_told: bool) -> None:
        self.events.append(said)
        if is_told and self._ranks.is_first:
            tell(said)


def _finish(checkpointer: Checkpointer) -> None:
    """The script has ended without a word; what it leaves is not known to be the end of a step."""
    checkpointer._journal.hurry()
    checkpointer.close(save=False)


def _is_loader(value: Any) -> bool:
    return isinstance(loader_below(value), DataLoader)
