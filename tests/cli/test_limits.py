"""Trainings under a limit of memory: real ones, and what is said of how they end."""

import resource
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from elbowroom.cli import demo
from elbowroom.cli.contender import NO_LIMIT, NO_MEMORY, Settings, Unlimited, limit_memory
from elbowroom.cli.contest import Ending, run_together
from elbowroom.cli.limits import judge
from elbowroom.report.model import Contender, Step

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and limits")


def end(*codes: int, said: str = "") -> list[tuple[Ending, Contender | None]]:
    done = Contender(name="x", label="x", steps=(Step(step=1, loss=1.0, seconds=1.0),))
    return [(Ending(code=code, said=said), None if code else done) for code in codes]


LIMITED = [
    Settings(name=name, label=name, limit_bytes=10**7) for name in ("usual", "plain", "room")
]


def test_a_fair_limit_needs_no_word() -> None:
    trial = judge(LIMITED, end(0, NO_MEMORY, 0))
    assert [attempt.finished for attempt in trial.attempts] == [True, False, True]
    assert trial.note == ""


def test_a_limit_that_stops_plain_training_at_its_usual_batch_tells_nothing() -> None:
    trial = judge(LIMITED, end(NO_MEMORY, NO_MEMORY, NO_MEMORY))
    assert len(trial.attempts) == 3 and "the limit was too tight to tell" in trial.note


def test_a_limit_that_cannot_be_set_leaves_the_part_out() -> None:
    trial = judge(LIMITED, end(NO_LIMIT, NO_LIMIT, NO_LIMIT, said="the system already allows"))
    assert trial.attempts == ()
    assert "could not be set: the system already allows" in trial.note


def test_a_killed_attempt_says_so() -> None:
    trial = judge(LIMITED, end(0, -signal.SIGKILL, -signal.SIGSEGV))
    assert "it was killed (signal 9)" in trial.attempts[1].said
    assert "when it asked for more memory" in trial.attempts[2].said


@linux
def test_a_lower_hard_limit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (10**6, 10**6))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: pytest.fail("was set"))
    with pytest.raises(Unlimited, match=r"no more than 1 MB.*raise that first"):
        limit_memory(10**6)


def test_quick_takes_no_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it trains is smaller than the allocator's habits, which it would tell of."""
    found: list[bool] = []
    monkeypatch.setattr(demo, "_contest", lambda *_, limited, **__: found.append(limited))
    for quick in (False, True):
        demo.demo(out=tmp_path / "run", quick=quick)
    assert found == [True, False]


@linux
def test_what_plain_training_cannot_do_under_a_limit(tmp_path: Path) -> None:
    usual: dict[str, Any] = {"steps": 1, "batch": 6, "rows": 96}
    plain = Settings(name="plain", label="plain", **usual)
    ((ending, free),) = run_together(tmp_path / "free", [plain])
    assert ending.code == 0 and free is not None and free.memory is not None
    limit = int(0.6 * free.memory.above_bytes)
    tight = Settings(name="plain", label="plain", limit_bytes=limit, **usual)
    ((ending, refused),) = run_together(tmp_path / "tight", [tight])
    assert ending.code == NO_MEMORY and refused is not None
    assert "out of memory in step 1" in refused.note and refused.steps == ()
    room = Settings(name="room", label="room", tolerance=0.1, limit_bytes=limit, **usual)
    ((ending, finished),) = run_together(tmp_path / "room", [room])
    assert ending.code == 0 and finished is not None and len(finished.steps) == 1
