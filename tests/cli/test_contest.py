"""Contenders side by side: who counts, what they say, and how they are ended."""

import json
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from elbowroom.cli import contest
from elbowroom.cli.contender import AHEAD, FOREVER, PACE, Settings
from elbowroom.cli.contest import ContenderFailed, Ending, Training, check, compete, count_steps
from elbowroom.report.model import Contender, Run, State, Step
from elbowroom.report.writing import Writer

HEADER: dict[str, Any] = {"label": "x", "planned_steps": 3, "facts": {}}


class Seen(Exception):
    """There is no more to look at."""


def contender(name: str, steps: int, state: State = "running") -> Contender:
    done = tuple(Step(step=i, loss=1.0, seconds=1.0) for i in range(steps))
    return Contender(name=name, label=name, steps=done, state=state)


@contextmanager
def running(code: str) -> Iterator[Training]:
    """A process that says "ready" when it is."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=said
        )
        with process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                yield Training(process=process, said=said)
            finally:
                process.kill()


def test_only_who_is_alive_counts_and_who_is_loading_has_done_nothing() -> None:
    run = Run(title="x", contenders=(contender("plain", 3), contender("room", 5)))
    assert sorted(count_steps(run, {"plain", "room"})) == [3, 5]
    assert count_steps(run, {"room"}) == [5]  # the other was killed: its record says it runs
    assert sorted(count_steps(run, {"room", "late"})) == [0, 5]
    ended = Run(title="x", contenders=(contender("plain", 3, "stopped"), contender("room", 5)))
    assert count_steps(ended, {"plain", "room"}) == [5]


def test_nobody_runs_ahead_while_another_is_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("plain", "room")
    paces: list[list[int]] = []

    @contextmanager
    def start(*_: Any) -> Iterator[dict[str, Training]]:
        with running("import signal; print('ready', flush=True); signal.pause()") as training:
            yield dict.fromkeys(names, training)

    monkeypatch.setattr(contest, "_all_started", start)
    monkeypatch.setattr(contest, "GLANCE_S", 0.0)
    both = [Settings(name=name, label=name) for name in names]

    def look(run: Run) -> None:
        if (tmp_path / PACE).exists():
            paces.append(json.loads((tmp_path / PACE).read_text()))
            raise Seen

    with Writer(tmp_path, "plain", "contender", HEADER) as writer:
        writer.append("step", step=1, loss=1.0, seconds=1.0)
        with pytest.raises(Seen):
            compete(tmp_path, both, seconds=1e9, look=look)
    assert paces[0] == [AHEAD, FOREVER]
    assert not list(tmp_path.glob("pace.*"))


def test_what_is_said_at_length_blocks_nobody() -> None:
    code = """
        import sys
        print("ready", flush=True)
        for _ in range(300):
            sys.stderr.write("warning " * 128 + "\\n")
        sys.stderr.write("the last word\\n")
        sys.exit(7)
    """
    with running(code) as training:
        assert training.wait() == Ending(code=7, said="the last word")


def test_one_that_swallows_the_first_signal_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contest, "ASK_AGAIN_S", 1.0)
    code = """
        import signal, sys
        caught = []
        signal.signal(signal.SIGINT, lambda *_: caught.append(1) or len(caught) > 1 and sys.exit(9))
        print("ready", flush=True)
        while True:
            signal.pause()
    """
    with running(code) as training:
        contest.end_all([training])
        assert training.wait().code == 9


def test_one_that_will_not_end_is_made_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "ASK_AGAIN_S", 0.01)
    code = """
        import signal
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("ready", flush=True)
        while True:
            signal.pause()
    """
    with running(code) as training:
        contest.end_all([training])
        assert training.wait().code == -signal.SIGKILL


def test_a_contender_whose_parent_has_gone_does_not_begin(tmp_path: Path) -> None:
    settings = Settings(name="plain", label="plain").to_json()
    nobody = "1"  # the parent of orphans, and not ours
    words = [sys.executable, "-m", "elbowroom.cli.contender", str(tmp_path), settings, nobody]
    done = subprocess.run(words, capture_output=True, timeout=120, check=False)
    assert done.returncode == 130 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-signal.SIGKILL, "was killed (signal 9), perhaps for want of memory: close other"),
        (-signal.SIGSEGV, "was ended by signal 11"),
        (1, "ended with code 1: what it said"),
    ],
)
def test_every_other_end_is_a_sentence(code: int, said: str) -> None:
    run = Run(title="x", contenders=(contender("plain", 3),))
    with pytest.raises(ContenderFailed) as error:
        check({"plain": Ending(code=code, said="what it said")}, run)
    assert f"the training 'plain' {said}" in str(error.value)
