"""Interleaved timing: contenders take turns, and the best of several rounds counts.

On a shared machine the noise only ever adds time; turns spread it over all contenders alike.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from elbowroom import _native


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One call to time, at one instruction set when it is ours."""

    name: str
    call: Callable[[], Any]
    nbytes: int  # of float input, by which its speed is reckoned
    isa: str | None = None


@dataclass(frozen=True, kw_only=True)
class Time:
    """The best time of a contender."""

    seconds: float
    nbytes: int

    @property
    def gb_per_s(self) -> float:
        """Float input per second in 10^9 bytes."""
        return self.nbytes / self.seconds / 1e9


def race(
    contenders: Sequence[Contender], *, rounds: int, budget_s: float = 20.0, least_rounds: int = 3
) -> dict[str, Time]:
    """Run every contender once to warm up, then round after round; return the best times.

    A contender that has used up its budget stops after `least_rounds`: the slow ones need fewer
    repeats for the same precision.
    """
    names = [contender.name for contender in contenders]
    if len(set(names)) < len(names):
        raise ValueError(f"contenders share a name: {names}")
    before = _native.isa()
    best = dict.fromkeys(names, float("inf"))
    spent = dict.fromkeys(names, 0.0)
    try:
        for number in range(rounds + 1):
            for contender in contenders:
                if number > least_rounds and spent[contender.name] > budget_s:
                    continue
                _native.set_isa(contender.isa or before)
                start = time.perf_counter()
                result = contender.call()
                seconds = time.perf_counter() - start
                del result
                if number:
                    spent[contender.name] += seconds
                    best[contender.name] = min(best[contender.name], seconds)
    finally:
        _native.set_isa(before)
    return {
        contender.name: Time(seconds=best[contender.name], nbytes=contender.nbytes)
        for contender in contenders
    }
