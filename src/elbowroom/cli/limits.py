"""Trains under a limit of memory that the operating system enforces."""

from dataclasses import dataclass, replace
from pathlib import Path

from elbowroom.cli.contender import NO_LIMIT, Settings
from elbowroom.cli.contest import Ending, run_together, say_signal
from elbowroom.report.model import Attempt, Contender

USUAL, *LARGER = ATTEMPTS = ("plain-usual", "plain-larger", "elbowroom-larger")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of the trainings under a limit."""

    attempts: tuple[Attempt, ...] = ()
    note: str = ""
    """Why they tell nothing, if they do not."""


def try_limits(
    folder: Path, both: list[Settings], limit_bytes: int, *, larger: int, steps: int
) -> Trial:
    """Plain training at the usual and a larger batch, and the other at the larger one."""
    plain, room = both
    wanted = [replace(plain, name=USUAL, label=f"plain, batch {plain.batch}")]
    for name, settings in zip(LARGER, (plain, room), strict=True):
        batch = larger * settings.batch
        label = f"{settings.label}, batch {batch}"
        wanted.append(replace(settings, name=name, label=label, batch=batch))
    limited = [replace(s, limit_bytes=limit_bytes, steps=steps, score_every=None) for s in wanted]
    # Two at a time: they do not share the limit, only the cores. The one that should be refused
    # memory, which comes soon, goes last.
    usual, refused, squeezed = limited
    first, last = run_together(folder, [usual, squeezed])
    return judge(limited, [first, *run_together(folder, [refused]), last])


def judge(limited: list[Settings], ended: list[tuple[Ending, Contender | None]]) -> Trial:
    """Say what it shows; the first one has to finish for the limit to be fair."""
    unset = next((ending for ending, _ in ended if ending.code == NO_LIMIT), None)
    if unset is not None:
        said = unset.said or "no word"
        return Trial(
            note=f"the trainings under a limit are left out, as it could not be set: {said}"
        )
    attempts = tuple(_attempt(s, *end) for s, end in zip(limited, ended, strict=True))
    if attempts[0].finished:
        return Trial(attempts=attempts)
    return Trial(
        attempts=attempts,
        note="the limit was too tight to tell: plain training did not finish under it at its "
        "usual batch either",
    )


def _attempt(settings: Settings, ending: Ending, contender: Contender | None) -> Attempt:
    assert settings.limit_bytes is not None
    memory = None if contender is None else contender.memory
    done = 0 if contender is None else len(contender.steps)
    return Attempt(
        label=settings.label,
        limit_bytes=settings.limit_bytes,
        finished=ending.code == 0,
        said=_say(ending, contender, done),
        steps=done,
        peak_bytes=None if memory is None or not done else memory.above_bytes,
        facts={"batch": str(settings.batch)},
    )


def _say(ending: Ending, contender: Contender | None, done: int) -> str:
    if ending.code == 0:
        return f"{done} steps"
    if contender is not None and contender.note:
        return contender.note
    if ending.is_out_of_memory:
        return f"the system ended it (code {ending.code}) when it asked for more memory"
    if ending.code < 0:
        return f"it {say_signal(ending.code)}"
    return f"it ended with code {ending.code}: {ending.said or 'no word'}"
