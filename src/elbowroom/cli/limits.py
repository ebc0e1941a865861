"""Trains under a limit of memory that the operating system enforces."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from elbowroom.cli.contender import Settings
from elbowroom.cli.contest import Ending, run_alone
from elbowroom.report.model import Attempt, Contender


def try_limits(
    folder: Path, both: list[Settings], limit_bytes: int, *, larger: int, steps: int
) -> list[Attempt]:
    """Plain training at the usual and a larger batch, and the other at the larger one."""
    plain, room = both
    usual = [replace(plain, name="plain-usual", label=f"plain, batch {plain.batch}")]
    above = [
        replace(s, name=f"{s.name}-larger", label=f"{s.label}, batch {larger * s.batch}")
        for s in (plain, room)
    ]
    above = [replace(s, batch=larger * s.batch) for s in above]
    wanted = [
        replace(s, limit_bytes=limit_bytes, steps=steps, score_every=None) for s in (*usual, *above)
    ]
    # Two processes at a time: they do not share the limit, only the cores.
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda settings: _attempt(folder / settings.name, settings), wanted))


def _attempt(folder: Path, settings: Settings) -> Attempt:
    ending, contender = run_alone(folder, settings)
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
    return f"it ended with code {ending.code}: {ending.said or 'no word'}"
