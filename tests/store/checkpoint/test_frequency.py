"""Saving takes the share of time that it may take, on machines that are simulated."""

import math
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint.frequency import Pace


def train(
    pace: Pace,
    seconds: float,
    *,
    step_s: Callable[[float], float],
    stall_s: Callable[[float], float],
    persist_s: float = 0.0,
    slowdown: float = 1.0,
    noise: float = 0.05,
) -> tuple[float, int]:
    """Run a loop for so long; return the share of time that saving has added, and the saves."""
    draw = random.Random(0)
    now = added = 0.0
    saves, ends, last = 0, None, None
    while now < seconds:
        alone = step_s(now) * math.exp(draw.gauss(0, noise))
        is_busy = ends is not None
        took = alone * (slowdown if is_busy else 1.0)
        added += took - alone
        now += took
        pace.step(None if last is None else took, is_disturbed=is_busy)
        last = took
        if ends is not None and now >= ends:
            pace.persisted(persist_s)
            ends = None
        if ends is None and pace.is_due():
            stall = stall_s(now) * math.exp(draw.gauss(0, noise))
            now, added, saves, ends = now + stall, added + stall, saves + 1, now + stall + persist_s
            pace.stalled(stall)
    return added / (now - added), saves


@pytest.mark.parametrize("cap", [0.01, 0.035, 0.1])
@pytest.mark.parametrize("slowdown", [1.0, 1.3])
def test_overhead_is_what_was_asked_for(cap: float, slowdown: float) -> None:
    share, saves = train(
        Pace(max_overhead=cap),
        1200,
        step_s=lambda now: 0.1,
        stall_s=lambda now: 0.05,
        persist_s=0.2,
        slowdown=slowdown,
    )
    assert share == pytest.approx(cap, abs=0.01) and saves > 20


@pytest.mark.parametrize(
    ("step_s", "stall_s"),
    [
        (lambda now: 0.1 + 0.2 * now / 600, lambda now: 0.05),  # slower and slower
        (lambda now: 0.3 - 0.2 * now / 600, lambda now: 0.05),  # faster and faster
        (lambda now: 0.1 if now % 200 < 100 else 0.25, lambda now: 0.05),  # to and fro
        (lambda now: 0.1, lambda now: 0.02 if now < 300 else 0.2),  # a disk that becomes busy
        (lambda now: 0.1, lambda now: 0.2 if now < 300 else 0.02),  # and idle again
    ],
)
def test_it_follows_what_changes_in_both_directions(
    step_s: Callable[[float], float], stall_s: Callable[[float], float]
) -> None:
    share, saves = train(Pace(), 600, step_s=step_s, stall_s=stall_s, persist_s=0.3, slowdown=1.2)
    assert share == pytest.approx(0.035, abs=0.01) and saves > 10


def test_a_faster_disk_means_more_checkpoints() -> None:
    counts = [
        train(Pace(), 300, step_s=lambda now: 0.1, stall_s=lambda now, s=s: s)[1]
        for s in (0.2, 0.05, 0.01)
    ]
    assert counts[0] < counts[1] / 2 < counts[2] / 4


def test_there_is_no_second_one_before_the_cost_of_the_first_is_known() -> None:
    pace = Pace()
    due = []
    for step in range(1, 40):
        is_busy = bool(due) and step < 30  # a slow disk
        pace.step(0.1, is_disturbed=is_busy)
        if pace.is_due():
            due.append(step)
            pace.stalled(0.01)
    assert due[:2] == [4, 30]  # not a word came of the first: it has failed


def test_there_are_not_several_at_once() -> None:
    pace = Pace(max_overhead=0.2)
    due = []
    for step in range(1, 90):
        is_busy = bool(due) and step - due[0] < 30
        pace.step(0.1, is_disturbed=is_busy)
        if len(due) == 1 and step == 34:
            pace.persisted(3.0)
        if pace.is_due():
            due.append(step)
            pace.stalled(0.001)
    assert len(due) > 2 and min(b - a for a, b in pairwise(due)) >= 15


def test_failures_that_are_rare_make_it_save_less() -> None:
    pace = Pace(mean_time_between_failures_s=20_000)
    _, saves = train(pace, 600, step_s=lambda now: 0.1, stall_s=lambda now: 0.05, noise=0)
    young_s = math.sqrt(2 * 0.05 * 20_000)
    assert saves == pytest.approx(600 / young_s, abs=2)
    assert "Young" in pace.explain() and pace.interval() == pytest.approx(young_s / 0.1, rel=0.1)


def test_what_it_says() -> None:
    pace = Pace()
    assert "first checkpoint" in pace.explain()
    train(pace, 60, step_s=lambda now: 0.1, stall_s=lambda now: 0.035, noise=0)
    assert "about every 10 steps: a step takes 0.1 s" in pace.explain()
    assert "3.5%" in pace.explain()
    pace = Pace(every=7)
    assert (
        pace.explain() == "a checkpoint at most every 7 steps, as asked for"
        and pace.interval() == 7
    )
    due = []
    for step in range(1, 22):
        pace.step(0.1, is_disturbed=False)
        if pace.is_due():
            due.append(step)
            pace.stalled(0)
    assert due == [7, 14, 21]


def test_the_disk_is_not_asked_for_more_than_it_can_take() -> None:
    pace = Pace(max_overhead=0.5)
    _, saves = train(
        pace, 100, step_s=lambda now: 0.01, stall_s=lambda now: 0.001, persist_s=2, noise=0
    )
    assert saves <= 51 and "what the disk can take" in pace.explain()


def test_news_come_when_there_are_any() -> None:
    pace = Pace()
    assert pace.news() is None
    train(pace, 60, step_s=lambda now: 0.1, stall_s=lambda now: 0.035, noise=0)
    assert pace.news() == pace.explain()
    assert pace.news() is None
    train(pace, 600, step_s=lambda now: 0.1, stall_s=lambda now: 0.1, noise=0)
    assert "about every 29 steps" in (pace.news() or "")
    train(pace, 600, step_s=lambda now: 0.1, stall_s=lambda now: 0.03, noise=0)
    assert pace.news() is not None
    assert Pace(every=3).news() is None


@pytest.mark.parametrize("bad", [0, 1, -0.1, 2, math.nan, "0.1", None, True])
def test_bad_numbers(bad: Any) -> None:
    with pytest.raises(InvalidArgument, match="max_overhead must be a share between 0 and 1"):
        Pace(max_overhead=bad)
    with pytest.raises(InvalidArgument, match="every must be a number of steps from 1 on"):
        Pace(every=0)
    for none in (0, math.inf, math.nan, "x"):
        with pytest.raises(InvalidArgument, match="must be more than 0 seconds and less than"):
            Pace(mean_time_between_failures_s=none)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_the_first_one_comes_early() -> None:
    """Who asks for one every 100 steps and is killed at the 33rd has one."""
    for every, want in ((100, [3, 100, 200]), (5, [5, 10]), (10, [3, 10, 20])):
        pace, due = Pace(every=every), list[int]()
        for step in range(1, 2 * every + 1):
            pace.step(0.1, is_disturbed=False)
            if pace.is_due():
                due.append(step)
                pace.stalled(0.0)
        assert due == want
    pace = Pace(every=100)
    pace.goes_on()
    pace.step(0.1, is_disturbed=False)
    assert not any(pace.is_due() for _ in range(9))
    assert pace.explain() == "a checkpoint at most every 100 steps, as asked for"
