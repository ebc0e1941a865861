"""What a step finds around it besides its arguments, and finds again when it is made again."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from elbowroom.keep.activations.untouched import is_plain
from elbowroom.keep.loops.names import Reach, Surroundings
from elbowroom.keep.loops.statistics import Moved, Statistics
from elbowroom.keep.surroundings import is_same_randomness, random_state, set_random_state


class Autocast:
    """Autocast as it was when the loop was called; backward is called outside of it, as a rule.

    Without its cache: a weight that is cast in a step without a tape would be taken from there by
    steps with one, and by what the user runs after the loop, and no gradient would come to it.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        kinds = sorted({"cpu", *(t.device.type for t in tensors)})
        self._kinds = [kind for kind in kinds if torch.amp.is_autocast_available(kind)]
        self._dtypes = {
            kind: torch.get_autocast_dtype(kind)
            for kind in self._kinds
            if torch.is_autocast_enabled(kind)
        }

    @property
    def key(self) -> tuple[Any, ...]:
        """What it was."""
        return tuple(self._dtypes.items())

    @property
    def is_needed(self) -> bool:
        """Whether anything is to be switched on or off."""
        return bool(self._dtypes) or any(torch.is_autocast_enabled(kind) for kind in self._kinds)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The same as then."""
        with ExitStack() as stack:
            for kind in self._kinds:
                is_on = kind in self._dtypes
                if is_on or torch.is_autocast_enabled(kind):
                    dtype = self._dtypes.get(kind)
                    stack.enter_context(
                        torch.autocast(kind, dtype=dtype, enabled=is_on, cache_enabled=False)
                    )
            yield


class Members:
    """What modules have now: parameters and buffers, and whether they are in training.

    `torch.func.functional_call` gives them others for the time of a call.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        parts = {id(part): part for module in modules for part in module.modules()}
        self._held: list[tuple[dict[str, Any], str, Any]] = [
            (names, name, value)
            for part in parts.values()
            for names in (part._parameters, part._buffers)
            for name, value in names.items()
        ]
        self._held += [(vars(part), "training", part.training) for part in parts.values()]

    @contextmanager
    def put_in(self) -> Iterator[None]:
        """The modules have the same inside of the block."""
        changed = [
            (names, name, value, names[name])
            for names, name, value in self._held
            if name in names and names[name] is not value
        ]
        try:
            for names, name, value, _ in changed:
                names[name] = value
            yield
        finally:
            for names, name, _, other in changed:
                names[name] = other


class Moment:
    """What a step finds besides its state, at some step: random numbers, and what has moved."""

    __slots__ = ("moved", "random")

    def __init__(self, random: Any, moved: Moved) -> None:
        self.random, self.moved = random, moved


class Conditions:
    """All of it, as it was when the loop was called."""

    def __init__(self, step: Callable[..., Any], named: Any, tensors: Iterable[Tensor]) -> None:
        """`named` is what the user has given as parameters, which may be modules."""
        reach = Reach(step, named)
        given = {id(t) for t in tensors}
        self.autocast = Autocast(tensors)
        found = [t for t in reach.tensors if id(t) not in given and is_plain(t)]
        self._names = Surroundings(reach, [t for t in found if not t.requires_grad])
        self.statistics = Statistics(
            [b for module in reach.modules for b in module.buffers()] + found
        )
        self.explain = self._names.explain
        self.left_alone = self._names.left_alone
        self._members = Members(reach.modules)
        self._random = random_state()
        flags = tuple(inner.training for module in reach.modules for inner in module.modules())
        self.key = self.autocast.key, flags
        """What a step may do otherwise in another call."""

    def rewind(self) -> None:
        """Random numbers are drawn from where they were, and buffers are what they were."""
        set_random_state(self._random)
        self.statistics.put({})

    def settle(self) -> None:
        """The loop has run."""
        self.statistics.settle()
        self.statistics.keep()
        self._names.watch(self.statistics.is_moving)

    def moment(self, last: Moment | None) -> Moment:
        """What the next step finds; random numbers are shared with the last one if none came."""
        random = random_state()
        if last is not None and is_same_randomness(last.random, random):
            moved = self.statistics.keep()
            return Moment(last.random, moved) if moved or last.moved else last
        return Moment(random, self.statistics.keep())

    def put(self, moment: Moment) -> None:
        """The next step is to find this."""
        set_random_state(moment.random)
        self.statistics.put(moment.moved)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """What happens inside of the block leaves no trace in statistics and random numbers.

        Modules have what they had, and names name what they named.
        """
        self._names.check()
        before, random = self.statistics.copy(), random_state()
        try:
            with self._members.put_in(), self._names.put_in():
                yield
        finally:
            set_random_state(random)
            self.statistics.restore(before)
