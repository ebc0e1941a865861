"""Cuts a run down to what one page can show, and says what was left out.

Together with the limits of curves, dots and rows this bounds the page: see `render`.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from elbowroom.report.model import Attempt, Contender, Run, Score
from elbowroom.report.wording import shorten

MOST_LABEL = 80
MOST_SENTENCE = 400
MOST_FACTS = 24
MOST_FACT = 200
MOST_BASELINES = 8
MOST_ATTEMPTS = 50
MOST_EVENTS = 50  # of all contenders together
MOST_EVENT = 300


def trim(run: Run) -> tuple[Run, list[str]]:
    """Return the run with short texts and few of what there may be many of, and what is left out.

    Steps and rows stay: what is said of them is said of all.
    """
    left: list[str] = []
    share = MOST_EVENTS // max(1, len(run.contenders))
    contenders = tuple(_trim_contender(c, share, left) for c in run.contenders)
    attempts = tuple(_trim_attempt(attempt) for attempt in run.attempts[:MOST_ATTEMPTS])
    _note(left, "trainings under a limit", len(attempts), len(run.attempts))
    _note(left, "facts about the machine", MOST_FACTS, len(run.machine))
    trimmed = replace(
        run,
        machine=_trim_facts(run.machine),
        contenders=contenders,
        attempts=attempts,
        note=shorten(run.note, MOST_SENTENCE),
    )
    return trimmed, left


def _trim_contender(contender: Contender, events: int, left: list[str]) -> Contender:
    label = shorten(contender.label, MOST_LABEL)
    _note(left, f"facts about {label}", MOST_FACTS, len(contender.facts))
    most = max((len(score.baselines) for score in contender.scores), default=0)
    _note(left, f"baselines of {label}", MOST_BASELINES, most)
    _note(left, f"events of {label}", events, len(contender.events))
    return replace(
        contender,
        label=label,
        facts=_trim_facts(contender.facts),
        scores=tuple(_trim_score(score) for score in contender.scores),
        events=tuple(shorten(event, MOST_EVENT) for event in contender.events[-events:]),
        note=shorten(contender.note, MOST_SENTENCE),
    )


def _trim_facts(facts: Mapping[str, str]) -> dict[str, str]:
    first = islice(facts.items(), MOST_FACTS)
    return {shorten(key, MOST_LABEL): shorten(value, MOST_FACT) for key, value in first}


def _trim_score(score: Score) -> Score:
    first = islice(score.baselines.items(), MOST_BASELINES)
    baselines = {shorten(name, MOST_LABEL): value for name, value in first}
    return replace(score, name=shorten(score.name, MOST_LABEL), baselines=baselines)


def _trim_attempt(attempt: Attempt) -> Attempt:
    return replace(
        attempt,
        label=shorten(attempt.label, MOST_LABEL),
        said=shorten(attempt.said, MOST_SENTENCE),
        facts=_trim_facts(attempt.facts),
    )


def _note(left: list[str], what: str, shown: int, there: int) -> None:
    if there > shown:
        left.append(f"{what} ({shown} of {there:,} shown)")
