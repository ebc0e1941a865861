"""The page stays below three megabytes, whatever was recorded, and says what it leaves out."""

from importlib import import_module
from typing import Any

import pytest

from elbowroom.keep.activations.ledger import Reading, Row
from elbowroom.report import Run, render
from elbowroom.report.figures import MOST_CURVE, make_figures
from elbowroom.report.model import Attempt, Contender, Moment, Score, Step, Timeline
from elbowroom.report.render import MOST_BYTES

WORST = '"'  # the character that escaping makes longest


def make_row(number: int = 0, **fields: Any) -> Row:
    usual: dict[str, Any] = {
        "name": f"layer.{number}: conv2d[0]",
        "readers": ("ConvolutionBackward0.0",),
        "error_class": "W",
        "method": "encode",
        "shape": (8, 16, 32, 32),
        "saved_bytes": 1000 + number,
        "kept_bytes": 100,
        "bound": 0.1,
        "gradient_error": 1e-5,
        "encode_s": 0.1,
        "decode_s": 0.1,
    }
    return Row(**{**usual, **fields})


def make_contender(**fields: Any) -> Contender:
    step = Step(step=1, loss=1 / 3, seconds=0.1)
    usual: dict[str, Any] = {"name": "x", "label": "x", "steps": (step,)}
    return Contender(**{**usual, **fields})


def make_long() -> Run:
    steps = tuple(Step(step=i, loss=1 / 3, seconds=0.1) for i in range(100_000))
    moments = [
        Moment(at_s=i * 1e-3, layer=f"l{i % 97}.{i}", plain_bytes=1, held_bytes=1)
        for i in range(30_000)
    ]
    row = make_row(name="a" * 1500, readers=("b" * 30,) * 4)
    return make_run(
        make_contender(
            steps=steps,
            rows=(row,) * 5000,
            timeline=Timeline(step=1, forward_s=1.0, moments=tuple(moments)),
            events=("e" * 2000,) * 5000,
        )
    )


def make_run(*contenders: Contender, **fields: Any) -> Run:
    return Run(title="large", contenders=contenders, **fields)


def make_sixteen(text: str) -> Run:
    rows = tuple(
        make_row(i, name=text, readers=(text,), error_class=text, method=text) for i in range(800)
    )
    steps = tuple(Step(step=i, loss=1 / 3, seconds=0.1) for i in range(3000))
    facts = {f"{i}{text}"[:200]: text for i in range(100)}
    scores = tuple(Score(step=i, name=text, value=1 / 3) for i in range(3000))
    readings = tuple(Reading(step=i, predicted=1 / 3, measured=2 / 3) for i in range(3000))
    return make_run(
        *(
            make_contender(
                name=f"c{i}",
                label=text,
                note=text,
                steps=steps,
                scores=scores,
                rows=rows,
                readings=readings,
                events=(text,) * 60,
                facts=facts,
            )
            for i in range(16)
        ),
        about=text,
        command=text,
        note=text,
        machine=facts,
        attempts=(Attempt(label=text, limit_bytes=1, finished=False, said=text),) * 60,
    )


def make_scores(number: int, baselines: int = 1) -> Run:
    simple = {f"{i}{'x' * 50}": 0.1 for i in range(baselines)}
    scores = (Score(step=i, name="IoU", value=1 / 3, baselines=simple) for i in range(number))
    return make_run(make_contender(scores=tuple(scores)))


def make_readings() -> Run:
    readings = (Reading(step=i, predicted=1 / 3, measured=2 / 3) for i in range(100_000))
    return make_run(make_contender(rows=(make_row(),), readings=tuple(readings)))


CASES = {
    "long": make_long,
    "scores": lambda: make_scores(200_000),
    "readings": make_readings,
    "key": lambda: make_run(make_contender(facts={"k" * 8_000_000: "v"})),
    "baselines": lambda: make_scores(1, 100_000),
    "facts": lambda: make_run(make_contender(facts={f"k{i}": "v" * 2000 for i in range(5000)})),
    "attempts": lambda: make_run(
        attempts=(Attempt(label="a" * 2000, limit_bytes=1, finished=False, said="b" * 2000),) * 3000
    ),
    "sixteen": lambda: make_sixteen("a" * 2000),
    "worst": lambda: make_sixteen(WORST * 2000),
    "wide": lambda: make_sixteen("\U0001f600" * 2000),
}


@pytest.mark.parametrize("case", CASES)
def test_the_page_stays_below_three_megabytes(case: str) -> None:
    page = render(CASES[case]())
    assert len(page.encode()) <= MOST_BYTES
    if case in ("baselines", "facts", "attempts", "sixteen"):
        assert "Left out, so that the page stays small" in page


def test_ledgers_share_the_rows_and_say_so() -> None:
    rows = tuple(make_row(i) for i in range(800))
    page = render(make_run(*(make_contender(name=f"c{i}", rows=rows) for i in range(16))))
    assert page.count("The 50 largest of 800 are shown") == 16
    assert page.count('id="ledger"') == 1 and page.count('id="ledger15"') == 1


def test_rows_that_would_be_too_long_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last resort, here for a smaller page."""
    run = make_run(make_contender(rows=tuple(make_row(i) for i in range(800))))
    whole = render(run)
    assert whole.count('<tr><td class="name">') == 800
    most = len(whole.encode()) - 1
    monkeypatch.setattr(import_module("elbowroom.report.render"), "MOST_BYTES", most)
    page = render(run)
    assert len(page.encode()) <= most
    assert "The 400 largest of 800 are shown, so that the page stays small" in page


def test_thin_curves_keep_their_ends() -> None:
    points = make_figures(make_scores(200_000))["score"]["series"][0]["points"]
    assert len(points) <= MOST_CURVE + 1
    assert (points[0][0], points[-1][0]) == (0, 199_999)
