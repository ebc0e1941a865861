"""What is said while trainings go on: something new, and what they do at the end."""

import pytest

from elbowroom.cli import progress
from elbowroom.cli.progress import describe, show_progress
from elbowroom.report.model import Contender, Run, State, Step

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


@pytest.mark.parametrize(
    ("state", "said"), [("finished", "done"), ("stopped", "time is up"), ("failed", "failed")]
)
def test_states_are_told_in_words(state: State, said: str) -> None:
    assert describe(Contender(name="x", label="x", steps=(STEP,), state=state)) == said


def test_before_the_first_step_data_are_read() -> None:
    assert describe(Contender(name="x", label="x")) == "reading data"
