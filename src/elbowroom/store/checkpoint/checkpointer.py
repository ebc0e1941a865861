"""`Checkpointer`: a run's state in a store, saved beside the training, resumed by itself."""

import inspect
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from elbowroom.codec import Bound
from elbowroom.errors import CorruptData, ElbowroomError, InvalidArgument
from elbowroom.store.checkpoint.copier import Copier
from elbowroom.store.checkpoint.ending import register, unregister
from elbowroom.store.checkpoint.forking import Choice, LiveBuffer, fork
from elbowroom.store.checkpoint.frequency import Pace
from elbowroom.store.checkpoint.journal import Journal
from elbowroom.store.checkpoint.loading import follow_loader
from elbowroom.store.checkpoint.lossy import read_tolerance
from elbowroom.store.checkpoint.manifest import Manifest
from elbowroom.store.checkpoint.persister import Persister
from elbowroom.store.checkpoint.ranks import Ranks
from elbowroom.store.checkpoint.retention import Keep, read_keep
from elbowroom.store.checkpoint.signals import Notice
from elbowroom.store.checkpoint.snapshot import Snapshot, lay_out
from elbowroom.store.checkpoint.sources import (
    CheckpointWarning,
    check_kinds,
    check_names,
    check_sources,
    kinds_of,
    load_into,
    read_randomness,
    set_randomness,
)
from elbowroom.store.checkpoint.state import flatten
from elbowroom.store.checkpoint.store import Name


class Checkpointer:
    """Saves a run every few steps and finds its way back.

    Whatever has `state_dict` and `load_state_dict` can be given by a name of its own. Under
    `torch.distributed`, what is given is taken to be the same on all ranks and is written by the
    first; objects named in `per_rank`, random numbers and the loader's position are each rank's
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
        **further: Any,
    ) -> None:
        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, **further}
        settings = [n for n in inspect.signature(Checkpointer).parameters if n not in given]
        self._sources = check_sources({k: v for k, v in given.items() if v is not None}, settings)
        check_names(self._sources, per_rank)
        self._process = os.getpid()
        if not isinstance(in_flight, int) or in_flight < 1:
            raise InvalidArgument(f"in_flight must be a number from 1 on, got {in_flight!r}")
        self._loader = None if loader is None else follow_loader(loader)
        self._per_rank = {"randomness", "loader", *per_rank}
        self._pace = Pace(
            max_overhead=max_overhead,
            every=every,
            mean_time_between_failures_s=mean_time_between_failures_s,
        )
        self._ranks = Ranks()
        is_copied = self._ranks.size > 1 or tolerance != 0
        if is_copied and snapshot == "fork":
            raise InvalidArgument(
                "snapshot='fork' is for a single process and for tolerance=0: leave it out"
            )
        self._choice = Choice("copy" if is_copied and snapshot == "auto" else snapshot)
        self._copier = Copier(self._optimizers() if self._is_lazy(lazy) else ())
        self._steps = self._saved = 0
        self._last_step_at: float | None = None
        self.resumed_from: int | None = None
        self.events: list[str] = []
        self._is_rule_checked = False
        self._rule = read_tolerance(tolerance)
        self._journal = Journal(
            where,
            ranks=self._ranks,
            keep=read_keep(keep),
            far=far,
            keep_far=None if keep_far is None else read_keep(keep_far),
            hash_name=hash,
            bound_of=self._rule,
        )
        self._notice = Notice()
        try:
            self._persister = Persister(self._journal.write, in_flight + 1, self._journal.adopt)
            self._journal.recycle = self._persister.give_back
            if resume:
                self._resume()
            if handle_signals:
                self._notice.listen()
            self._is_closed = False
            self._end = register(self)
        except BaseException:
            self._journal.close()
            raise

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
        seconds = None
        if self._last_step_at is not None:
            seconds = time.perf_counter() - self._last_step_at
        self._pace.step(seconds, is_disturbed=self._persister.is_busy or self._copier.is_busy)
        self._steps += 1
        self._tell_outcomes()
        is_due = self._ranks.is_first and self._pace.is_due() and self._persister.has_buffer()
        signal, due = self._ranks.most(self._notice.number, int(is_due))
        if signal:
            self.save(sync=True)
            self.close(save=False)
            raise SystemExit(0)
        if due:
            self.save()
        self._last_step_at = time.perf_counter()
        return bool(due)

    def save(self, *, sync: bool = False) -> None:
        """Take a snapshot now; with `sync`, come back when it is durable."""
        if os.getpid() != self._process:
            raise InvalidArgument(
                f"this Checkpointer belongs to process {self._process}, and a forked one cannot "
                "save with it: make one there, for another folder"
            )
        start = time.perf_counter()
        self._copier.wait()
        self._take()
        self._pace.stalled(time.perf_counter() - start)
        if sync:
            self.wait()

    def wait(self) -> None:
        """Until all that was begun is durable; raises what went wrong with it."""
        self._copier.wait()
        self._persister.wait()
        self._tell_outcomes(is_raised=True)

    def restore(self, step: int | None = None) -> int:
        """Go back to a checkpoint, the newest or that of a step; return its step."""
        self._copier.wait()
        self._persister.wait()
        self._tell_outcomes()
        found = self._resume(step)
        if found is None:
            raise InvalidArgument(f"there is no checkpoint in {self._journal.where} to restore")
        return found

    def close(self, *, save: bool = True) -> None:
        """Save what has been done since, finish what is being written, let go of the store."""
        if self._is_closed:
            return
        self._is_closed = True
        unregister(self._end)
        if save and self._steps != self._saved:
            self.save()
        self._notice.ignore()
        self._copier.close()
        self._persister.close()
        self._journal.close()
        self._tell_outcomes()

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

    def _take(self) -> None:
        self._saved = self._steps
        (number,) = self._ranks.share(self._journal.next_id())
        state = {name: s for name, s in self._state().items() if self._is_mine(name)}
        tree, tensors = flatten(state, "state")
        pieces, nbytes = lay_out(tensors)
        if self._ranks.is_first and not self._is_rule_checked:
            self._is_rule_checked = True
            for name in self._rule.idle(pieces):
                self._warn(f"tolerance names {name!r}, and no object or tensor is called so")
        facts = {
            "id": f"{number:016x}",
            "torch": torch.__version__,
            "kinds": kinds_of(self._sources),
        }
        if self._choice.pick(tensors, self._journal.changed) == "fork":
            self._persister.wait()  # the child builds on what is committed
            live = LiveBuffer(tensors)
            snapshot = Snapshot(
                step=self._steps, tree=tree, facts=facts, pieces=pieces, buffer=live
            )
            self._persister.submit(fork(snapshot, self._journal.put))
            return
        buffer = self._persister.take_buffer()
        try:
            buffer.reserve(nbytes)
            snapshot = Snapshot(
                step=self._steps, tree=tree, facts=facts, pieces=pieces, buffer=buffer
            )
            self._copier.begin(tensors, pieces, buffer, lambda: self._persister.submit(snapshot))
        except BaseException:
            self._persister.give_back(buffer)
            raise

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
        passed: list[str] = []
        with self._journal.store.reading():
            for name in self._candidates(step):
                state, problem = self._read(name)
                (is_broken,) = self._ranks.most(int(problem is not None))
                if not is_broken:
                    assert state is not None
                    self._apply(state)
                    self._journal.build_on(name)
                    self.resumed_from = self._steps = self._saved = name.step
                    if passed:
                        self._warn(
                            f"went back to step {name.step}, since newer checkpoints are damaged: "
                            + "; ".join(passed)
                        )
                    self.events.append(f"resumed from step {name.step}")
                    return name.step
                passed.append(problem or f"step {name.step} is damaged on another rank")
        if passed:
            raise CorruptData(
                f"no checkpoint in {self._journal.where} is whole: {'; '.join(passed)}; move the "
                "folder away to begin anew"
            )
        return None

    def _candidates(self, step: int | None) -> list[Name]:
        names = [n for n in reversed(self._journal.store.names()) if step in (None, n.step)]
        if step is not None and not names:
            there = ", ".join(str(n.step) for n in self._journal.store.names()) or "none"
            raise InvalidArgument(f"there is no checkpoint of step {step}; there are: {there}")
        (count,) = self._ranks.share(len(names))
        mine = [value for name in names for value in (name.step, int(name.id, 16))]
        numbers = self._ranks.share(*(mine if self._ranks.is_first else [0] * (2 * count)))
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return [Name(step=step, id=f"{identity:016x}") for step, identity in pairs]

    def _read(self, name: Name) -> tuple[dict[str, Any] | None, str | None]:
        store = self._journal.store
        try:
            manifest: Manifest = store.manifest(name)
            state = store.state(manifest, 0)
            if not isinstance(state, dict) or "steps" not in state:
                raise CorruptData(f"{name} holds no state of a run")
            check_kinds(manifest.facts.get("kinds"), state, self._sources)
            if not self._ranks.is_first:
                mine = store.state(manifest, self._ranks.rank % len(manifest.parts))
                if not isinstance(mine, dict):
                    raise CorruptData(f"{name} holds no state of a run for this rank")
                state |= {k: v for k, v in mine.items() if k in self._per_rank}
        except (CorruptData, OSError) as error:
            return None, f"step {name.step}: {error}"
        return state, None

    def _apply(self, state: Mapping[str, Any]) -> None:
        for name, source in self._sources.items():
            if name in state:
                load_into(name, source, state[name])
        try:
            if "randomness" in state:
                set_randomness(state["randomness"])
        except (TypeError, ValueError, KeyError, RuntimeError, OverflowError) as error:
            raise CorruptData(
                f"the checkpoint's random numbers have no such state: {error}"
            ) from error
        given = {"steps", "randomness", *self._sources}
        if self._loader is not None:
            given.add("loader")
            if "loader" in state:
                load_into("loader", self._loader, state["loader"])
        for name in sorted(given - state.keys() - {"randomness"}):  # an imported one has none
            self._warn(f"the checkpoint has no {name}: it stays as it was given")
        for name in sorted(state.keys() - given):
            self._warn(f"the checkpoint has {name}=, which was not given: it is left out")

    def _tell_outcomes(self, *, is_raised: bool = False) -> None:
        for outcome in self._persister.outcomes():
            if outcome.error is None:
                self._choice.saw(self._pace.persisted(outcome.seconds).added_s)
                continue
            said = f"the checkpoint of step {outcome.step} was not saved: {outcome.error}"
            if is_raised:
                if isinstance(outcome.error, ElbowroomError | OSError):
                    raise outcome.error
                raise RuntimeError(said) from outcome.error
            left = self._journal.store.names()
            stays = f"that of step {left[-1].step} stays" if left else "there is none before it"
            self._warn(f"{said}; {stays}, and saving will be tried again")
        while self._journal.told:
            self._warn(self._journal.told.pop(0))

    def _warn(self, said: str) -> None:
        self.events.append(said)
        if self._ranks.is_first:
            warnings.warn(said, CheckpointWarning, stacklevel=3)
