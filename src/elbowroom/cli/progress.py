"""Shows trainings while they go on: bars on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from elbowroom.report.model import Contender, Run
from elbowroom.report.wording import say_bytes, say_number, say_seconds

LINE_EVERY_S = 10.0
NARROW = 70  # columns below which there is no room for bars

_SAID = {"finished": "done", "stopped": "time is up"}

Look = Callable[[Run], None]


@contextmanager
def show_progress(labels: Sequence[str], steps: int, *, hidden: bool) -> Iterator[Look]:
    """Yield what is to be called with the run as it stands."""
    if hidden:
        yield lambda run: None
    elif sys.stderr.isatty():
        with _show_bars(labels, steps) as look:
            yield look
    else:
        yield _make_lines(steps)


def describe(contender: Contender) -> str:
    """Loss, memory and time in a few words, or what it does when its steps are over."""
    if contender.state != "running":
        return _SAID.get(contender.state, contender.state)
    if contender.doing or not contender.steps:
        return contender.doing or "reading data"
    loss = contender.steps[-1].loss if contender.steps else None
    peak = contender.memory.above_bytes if contender.memory else None
    return (
        f"loss {say_number(loss)}  peak {say_bytes(peak)}  {say_seconds(contender.step_s)} a step"
    )


def _make_lines(steps: int) -> Look:
    last = [time.monotonic()]
    said: dict[str, str] = {}
    print(f"training {steps} steps, plainly and with elbowroom", file=sys.stderr, flush=True)

    def look(run: Run) -> None:
        if time.monotonic() - last[0] < LINE_EVERY_S:
            return
        last[0] = time.monotonic()
        for contender in run.contenders:
            told = f"{contender.label}: step {len(contender.steps)}/{steps}  {describe(contender)}"
            if said.get(contender.label) != told:
                print(told, file=sys.stderr, flush=True)
            said[contender.label] = told

    return look


@contextmanager
def _show_bars(labels: Sequence[str], steps: int) -> Iterator[Look]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

    console = Console(stderr=True)
    wide = console.width >= NARROW
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}"),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
    ]
    if wide:
        columns.insert(1, BarColumn(bar_width=None))
    told = "{task.fields[told]}" if wide else "{task.fields[short]}"
    columns.append(TextColumn(told, markup=False))
    with Progress(*columns, console=console, expand=wide, transient=True) as progress:
        tasks = {
            label: progress.add_task(label, total=steps, told="starting", short="starting")
            for label in labels
        }

        def look(run: Run) -> None:
            for contender in run.contenders:
                if contender.label in tasks:
                    peak = contender.memory.above_bytes if contender.memory else None
                    progress.update(
                        tasks[contender.label],
                        completed=len(contender.steps),
                        told=describe(contender),
                        short=contender.doing or say_bytes(peak) if contender.steps else "…",
                    )

        yield look
