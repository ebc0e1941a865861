"""What is said while trainings go on: something new, and what they do at the end."""

import pytest

from elbowroom.cli import progress
from elbowroom.cli.progress import describe, show_progress
from elbowroom.report.model import Contender, Run, Step

STEP = Step(step=1, loss=0.5, seconds=1.0)


def test_lines_tell_what_follows_the_last_step_and_nothing_twice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    training = Contender(name="room", label="room", steps=(STEP,))
    measuring = Contender(name="room", label="room", steps=(STEP,), doing="measuring gradients")
    with show_progress(["room"], 30, hidden=False) as look:
        for contender in (training, training, measuring, measuring):
            look(Run(title="x", contenders=(contender,)))
    lines = capsys.readouterr().err.splitlines()[1:]
    assert len(lines) == 2
    assert "loss 0.5" in lines[0] and lines[1].endswith("measuring gradients")


def test_states_are_told_in_words() -> None:
    assert describe(Contender(name="x", label="x")) == "reading data"
    for state, said in (("finished", "done"), ("stopped", "time is up"), ("failed", "failed")):
        assert describe(Contender(name="x", label="x", steps=(STEP,), state=state)) == said
