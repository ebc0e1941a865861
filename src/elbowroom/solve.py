"""One option for each item, at the least cost under a peak.

Items have options; an option costs something and loads some stretches of time. Groups of items can
be replaced as a whole, at a cost and a load of their own. The sum of loads must stay below a limit
in every stretch.

The method is Lagrange's: with a price on load in each stretch every item decides for itself, and
prices rise where the load is above the limit (Everett 1963; Held and Karp 1971). What the prices
leave over is mended and improved move by move. It needs a few megabytes and no library.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float64]

_ROUNDS = 150
# Moves are improvements only beyond rounding.
_EPSILON = 1e-12

# Pairs of moves are looked for among this many of either kind.
_PAIRS = 48


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Items that can be replaced as a whole."""

    members: tuple[int, ...]
    cost: float
    load: Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What is there whatever is done, and what there is to choose."""

    rest: Row
    costs: Row
    """Of each item's options: (items, options); infinite where an item has fewer options."""

    loads: Row
    """(items, options, stretches)."""

    groups: tuple[Group, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """An option for each item, and which groups are replaced instead."""

    options: NDArray[np.intp]
    replaced: frozenset[int]
    cost: float
    peak: float


def fastest(task: Task, limit: float) -> Choice | None:
    """The least cost with a peak within the limit; None where no choice is known to have one."""
    found = _State(task, np.argmin(task.costs, axis=1))
    if found.peak <= limit:
        return found.choice()
    best = _State.lowest(task)
    if best.peak > limit:
        return None
    best.improve(limit)
    price = np.zeros(task.rest.size)
    scale = max(float(np.where(np.isfinite(task.costs), task.costs, 0).max(1).sum()), _EPSILON)
    scale += sum(group.cost for group in task.groups)
    for number in range(_ROUNDS):
        found = _State.priced(task, price)
        if number % 30 == 29:
            # Looking for moves takes as long as many rounds.
            found.mend(limit)
            found.improve(limit)
        if found.peak <= limit and found.cost < best.cost - _EPSILON:
            best = found
        excess = (found.load - limit) / limit
        price = np.maximum(0.0, price + scale / limit * excess / (1 + number) ** 0.5)
    best.improve(limit)
    best.exchange(limit)
    return best.choice()


def lowest(task: Task) -> Choice:
    """The lowest peak, whatever it costs."""
    return _State.lowest(task).choice()


class _State:
    """A choice that moves: an option of an item at a time, or a group."""

    def __init__(self, task: Task, options: NDArray[np.intp], replaced: set[int] | None = None):
        self._task = task
        self._options = options.copy()
        self._replaced = set(replaced or ())
        self._places = np.arange(len(options))
        self._settle()

    @classmethod
    def priced(cls, task: Task, price: Row) -> "_State":
        """What each item and group decides by itself at these prices."""
        scores = task.costs + task.loads @ price
        options = np.argmin(scores, axis=1)
        least = scores[np.arange(len(options)), options]
        replaced = {
            number
            for number, group in enumerate(task.groups)
            if group.cost + group.load @ price < least[list(group.members)].sum()
        }
        return cls(task, options, replaced)

    @classmethod
    def lowest(cls, task: Task) -> "_State":
        """Every item by its least load; then whatever lowers the peak."""
        loads = np.where(np.isfinite(task.costs)[:, :, None], task.loads, np.inf)
        found = cls(task, np.argmin(loads.sum(2), axis=1))
        while True:
            moves = found._moves(only_cheaper=False)
            peaks = [float((found.load + found._change(move)[1]).max()) for move in moves]
            if not peaks or min(peaks) >= found.peak - _EPSILON:
                return found
            found._make(moves[int(np.argmin(peaks))])

    def choice(self) -> Choice:
        """As it is now."""
        return Choice(
            options=self._options,
            replaced=frozenset(self._replaced),
            cost=self.cost,
            peak=self.peak,
        )

    def mend(self, limit: float) -> None:
        """Take what lowers the excess most for its cost, until there is none or no such move."""
        while self.peak > limit:
            excess = self._excess(self.load, limit)
            moves = self._moves(only_cheaper=False)
            changes = [self._change(move) for move in moves]
            if not changes:
                return
            loads = np.stack([load for _, load in changes]) + self.load
            gained = excess - np.maximum(loads - limit, 0.0).sum(1)
            costs = np.maximum([cost for cost, _ in changes], 0.0)
            is_gain = gained > _EPSILON * limit
            if not is_gain.any():
                return
            scores = np.where(is_gain, costs / np.maximum(gained, _EPSILON * limit), np.inf)
            self._make(moves[int(np.argmin(scores))])

    def improve(self, limit: float) -> None:
        """Take cheaper options while they fit, those first that save most for their load."""
        is_better = self.peak <= limit
        while is_better:
            is_better = False
            scored: list[tuple[float, tuple[int, int]]] = []
            for move in self._moves(only_cheaper=True):
                cost, load = self._change(move)
                scored.append((cost / max(float(load.max(initial=0.0)), _EPSILON), move))
            for _, move in sorted(scored):
                cost, load = self._change(move)
                if cost < -_EPSILON and float((self.load + load).max(initial=0.0)) <= limit:
                    self._make(move)
                    is_better = True

    def exchange(self, limit: float) -> None:
        """Take pairs of moves, one of which makes room for the other, while they cost less."""
        while self.peak <= limit:
            moves = self._moves(only_cheaper=False)
            changes = [self._change(move) for move in moves]
            order = np.argsort([cost for cost, _ in changes], kind="stable")
            ups = [i for i in order[:_PAIRS] if changes[i][0] < -_EPSILON]
            downs = [i for i in order if changes[i][0] >= -_EPSILON][:_PAIRS]
            if not ups or not downs:
                return
            costs = np.array([[changes[i][0] + changes[j][0] for j in downs] for i in ups])
            up, down = (np.stack([changes[i][1] for i in some]) for some in (ups, downs))
            peaks = (self.load + up[:, None] + down[None, :]).max(2)
            alike = np.array([[moves[i][0] == moves[j][0] for j in downs] for i in ups])
            # A group and one of its items are not two moves.
            alike |= np.array([[min(moves[i][0], moves[j][0]) < 0 for j in downs] for i in ups])
            costs[alike | (peaks > limit)] = 0.0
            if not costs.min() < -_EPSILON:
                return
            one, two = np.unravel_index(int(costs.argmin()), costs.shape)
            self._make(moves[ups[one]])
            self._make(moves[downs[two]])
            self.improve(limit)

    # A move is (item, option), or (-1 - group, whether it is replaced).

    def _moves(self, *, only_cheaper: bool) -> list[tuple[int, int]]:
        task, found = self._task, list[tuple[int, int]]()
        hidden = {i for number in self._replaced for i in task.groups[number].members}
        for item, option in enumerate(self._options):
            if item in hidden:
                continue
            costs = task.costs[item]
            limit = costs[option] - _EPSILON if only_cheaper else np.inf
            found += [(item, int(k)) for k in np.flatnonzero(costs < limit) if k != option]
        for number in range(len(task.groups)):
            move = (-1 - number, int(number not in self._replaced))
            if not only_cheaper or self._change(move)[0] < -_EPSILON:
                found.append(move)
        return found

    def _change(self, move: tuple[int, int]) -> tuple[float, Row]:
        task, (item, option) = self._task, move
        if item >= 0:
            now = self._options[item]
            cost = float(task.costs[item, option] - task.costs[item, now])
            return cost, task.loads[item, option] - task.loads[item, now]
        group = task.groups[-1 - item]
        members = list(group.members)
        inside = self._options[members]
        cost = group.cost - float(task.costs[members, inside].sum())
        load = group.load - task.loads[members, inside].sum(0)
        is_replaced = (-1 - item) in self._replaced
        if is_replaced == bool(option):
            return 0.0, np.zeros_like(load)
        return (cost, load) if option else (-cost, -load)

    def _make(self, move: tuple[int, int]) -> None:
        item, option = move
        if item >= 0:
            self._options[item] = option
        elif option:
            self._replaced.add(-1 - item)
        else:
            self._replaced.discard(-1 - item)
        self._settle()

    def _settle(self) -> None:
        task = self._task
        is_there = np.ones(len(self._options), bool)
        cost = 0.0
        load = task.rest.copy()
        for number in self._replaced:
            group = task.groups[number]
            is_there[list(group.members)] = False
            cost += group.cost
            load += group.load
        places, options = self._places[is_there], self._options[is_there]
        self.cost = cost + float(task.costs[places, options].sum())
        self.load: Row = load + task.loads[places, options].sum(0)
        self.peak = float(self.load.max(initial=0.0))

    @staticmethod
    def _excess(load: Row, limit: float) -> float:
        return float(np.maximum(load - limit, 0.0).sum())
