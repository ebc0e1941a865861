"""Finding the way back: the newest checkpoint that is whole on all ranks, and giving its state."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from elbowroom.errors import CorruptData, InvalidArgument, StoreUnreachable
from elbowroom.store.checkpoint.collector import let_collector_wait
from elbowroom.store.checkpoint.journal import Journal
from elbowroom.store.checkpoint.manifest import SHARDED
from elbowroom.store.checkpoint.naming import Name
from elbowroom.store.checkpoint.optimizers import check_optimizers
from elbowroom.store.checkpoint.ranks import Ranks
from elbowroom.store.checkpoint.reaching import PATIENCE_S, with_patience
from elbowroom.store.checkpoint.sources import Stateful, load_into, set_randomness
from elbowroom.store.checkpoint.store import Store

_AWAY = 2  # of what is wrong with a checkpoint, worse than being damaged: nobody knows


class Resuming:
    """Brings a run back to a checkpoint."""

    def __init__(
        self,
        journal: Journal,
        ranks: Ranks,
        sources: Mapping[str, Stateful],
        loader: Stateful | None,
        per_rank: frozenset[str],
    ) -> None:
        self._journal, self._ranks = journal, ranks
        self._sources, self._loader, self._per_rank = sources, loader, per_rank
        self._is_near = True

    @let_collector_wait()
    def go_back(self, step: int | None, tell: Callable[[str], None]) -> Name | None:
        """Give everything the state of the newest checkpoint, or of that step; None: there is none.

        Nothing is touched before a whole one is found. `tell` is called with what the user should
        know.
        """
        passed: dict[Name, str] = {}
        with self._journal.store.reading():
            for name in self._candidates(step):
                state, problem = self._read(name, tell)
                (is_broken,) = self._ranks.most(self._rate(problem))
                if is_broken == _AWAY:
                    if isinstance(problem, StoreUnreachable):
                        raise problem
                    raise StoreUnreachable(
                        f"step {name.step} cannot be reached from another rank: start again when "
                        f"{self._journal.where} is back"
                    )
                if not is_broken:
                    assert state is not None
                    self._apply(state, tell)
                    if not self._is_near:
                        self._journal.build_on(None)
                        self._journal.clearing.pass_over(name)
                    else:
                        self._journal.build_on(name)
                        if step is None:
                            self._journal.bring(name)  # the run before may have been killed first
                    if passed:
                        tell(
                            f"went back to step {name.step}, since newer checkpoints are damaged: "
                            + "; ".join(passed.values())
                        )
                    return name
                self._journal.clearing.pass_over(name)
                passed[name] = str(problem or f"step {name.step} is damaged on another rank")
        if passed:
            raise CorruptData(
                f"no checkpoint in {self._journal.where} is whole: {'; '.join(passed.values())}; "
                "move the folder away to begin anew"
            )
        if step is not None:
            there = ", ".join(map(str, self._journal.steps())) or "none"
            raise InvalidArgument(f"there is no checkpoint of step {step}; there are: {there}")
        return None

    def _candidates(self, step: int | None) -> Iterator[Name]:
        """From the newest back, and when all that are near have been tried, those that are far."""
        tried: set[Name] = set()
        while True:
            for name in self._near(step):
                if name not in tried:
                    tried.add(name)
                    yield name
            is_first = self._ranks.is_first
            (is_more,) = self._ranks.share(int(is_first and self._journal.fetch(step)))
            if not is_more:
                return

    def _near(self, step: int | None) -> list[Name]:
        names = [n for n in reversed(self._journal.store.names()) if step in (None, n.step)]
        (count,) = self._ranks.share(len(names))
        mine = [value for name in names for value in (name.step, int(name.id, 16))]
        numbers = self._ranks.share(*(mine if self._ranks.is_first else [0] * (2 * count)))
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return [Name(step=step, id=f"{identity:016x}") for step, identity in pairs]

    def _read(
        self, name: Name, tell: Callable[[str], None]
    ) -> tuple[dict[str, Any] | None, str | StoreUnreachable | None]:
        """The state, or why there is none; what is damaged near may be whole far."""
        self._is_near = True
        problem: str | StoreUnreachable
        try:
            near = partial(self._read_from, self._journal.store, name, tell)
            return with_patience(near, PATIENCE_S, str(self._journal.where)), None
        except StoreUnreachable as error:
            problem = error
        except (CorruptData, OSError) as error:
            problem = f"step {name.step}: {error}"
        far = self._journal.far
        if far is None:
            return None, problem
        try:
            with far.reading():
                state = self._read_from(far, name, tell)
        except StoreUnreachable as error:
            return None, error
        except (CorruptData, OSError):
            return None, problem
        self._is_near = False
        why = "out of reach" if isinstance(problem, StoreUnreachable) else "damaged"
        tell(f"step {name.step} was read from {far.place.root}, since it is {why} near: {problem}")
        return state, None

    @staticmethod
    def _rate(problem: str | StoreUnreachable | None) -> int:
        return _AWAY if isinstance(problem, StoreUnreachable) else int(problem is not None)

    def _read_from(self, store: Store, name: Name, tell: Callable[[str], None]) -> dict[str, Any]:
        manifest = store.manifest(name)
        if SHARDED in manifest.facts:
            raise InvalidArgument(
                f"step {name.step} in {store.place.root} was saved through torch.distributed"
                ".checkpoint: load it with elbowroom.store.checkpoint.dcp, take it out with "
                "elbowroom.load, or name another folder"
            )
        state = store.state(manifest, 0)
        if not isinstance(state, dict) or "steps" not in state:
            raise CorruptData(f"{name} holds no state of a run")
        for said in check_optimizers(manifest.facts, state, self._sources):
            tell(said)
        if not self._ranks.is_first:
            mine = store.state(manifest, self._ranks.rank % len(manifest.parts))
            if not isinstance(mine, dict):
                raise CorruptData(f"{name} holds no state of a run for this rank")
            state |= {k: v for k, v in mine.items() if k in self._per_rank}
        return state

    def _apply(self, state: Mapping[str, Any], tell: Callable[[str], None]) -> None:
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
            tell(f"the checkpoint has no {name}: it stays as it was given")
        for name in sorted(state.keys() - given):
            tell(f"the checkpoint has {name}=, which was not given: it is left out")
