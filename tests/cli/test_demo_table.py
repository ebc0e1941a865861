"""What the demo prints at its end: the figures, their tolerance, and what they mean."""

import pytest

from elbowroom.cli.demo_table import print_run, summarize
from elbowroom.keep.activations.ledger import Reading
from elbowroom.report.model import Contender, Run, Score, Step


def make_run(measured: float) -> Run:
    step = Step(step=7, loss=0.5, seconds=1.0, gradient_error=0.00871)
    score = Score(step=7, name="IoU", value=0.25, baselines={"persistence": 0.2375})
    room = Contender(
        name="elbowroom",
        label="elbowroom",
        tolerance=0.1,
        steps=(step,),
        scores=(score,),
        readings=(Reading(step=7, predicted=0.0189, measured=measured),),
    )
    return Run(title="x", contenders=(room,), state="stopped", note="time was up")


def test_the_tolerance_stands_beside_the_error_of_the_same_batches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_run(make_run(0.24), None, None)
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    assert ["gradient", "error", "0.0189"] in lines and "0.00871" not in shown
    assert ["as", "measured", "0.24"] in lines and ["tolerance", "0.1"] in lines
    assert "measured gradient error 0.24 exceeds the tolerance 0.1" in shown
    assert "higher is better" in shown and "Persistence repeats" in shown
    assert "Note: time was up." in shown
    found = summarize(make_run(0.24))["contenders"]["elbowroom"]
    assert (found["gradient_error"], found["tolerance"]) == (0.0189, 0.1)


def test_an_error_within_the_tolerance_needs_no_word(capsys: pytest.CaptureFixture[str]) -> None:
    print_run(make_run(0.09), None, None)
    assert "exceeds" not in capsys.readouterr().out
