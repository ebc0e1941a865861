"""Shows a study while it goes on: bars on a terminal, a line for every cell elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from elbowroom.study.campaign import Event

NARROW = 70  # columns below which there is no room for bars

Tell = Callable[[Event], None]


@contextmanager
def show_progress(cells: int, already: int, *, hidden: bool) -> Iterator[Tell]:
    """Yield what is to be called with every event."""
    if hidden:
        yield lambda event: None
    elif sys.stderr.isatty():
        with _show_bars(cells, already) as tell:
            yield tell
    else:
        yield _make_lines(cells, already)


def describe(event: Event) -> str:
    """How a cell ended, in a few words."""
    if event.failed is not None:
        return f"failed: {event.failed}"
    assert event.row is not None
    outcome = event.row["outcome"]
    if outcome["state"] == "diverged":
        return "diverged"
    ratio = f", {outcome['ratio']:.1f}x smaller" if outcome["ratio"] else ""
    return f"{outcome['metric']} {outcome['value']:.4f}{ratio}"


def _make_lines(cells: int, already: int) -> Tell:
    done = [already]
    print(f"study: {cells} trainings, {already} of them done before", file=sys.stderr, flush=True)

    def tell(event: Event) -> None:
        if event.row is None and event.failed is None:
            return
        done[0] += 1
        told = f"{done[0]}/{cells}  {event.cell.label}: {describe(event)}"
        print(told, file=sys.stderr, flush=True)

    return tell


@contextmanager
def _show_bars(cells: int, already: int) -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    wide = console.width >= NARROW
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
    ]
    if wide:
        columns[1:1] = [BarColumn(bar_width=None)]
        columns.append(TimeElapsedColumn())
    with Progress(*columns, console=console, expand=wide, transient=True) as progress:
        whole = progress.add_task("study", total=cells, completed=already)
        jobs: dict[int, tuple[str, TaskID]] = {}

        def tell(event: Event) -> None:
            name = event.cell.label if wide else event.cell.network
            ended = event.row is not None or event.failed is not None
            shown = jobs.get(event.job)
            if shown is None or shown[0] != event.cell.key:
                if shown is not None:
                    progress.remove_task(shown[1])
                jobs[event.job] = (event.cell.key, progress.add_task(name, total=event.steps or 1))
            task = jobs[event.job][1]
            if ended:
                progress.advance(whole)
                progress.remove_task(task)
                del jobs[event.job]
                console.print(
                    f"{event.cell.label}: {describe(event)}", markup=False, soft_wrap=True
                )
            else:
                progress.update(task, completed=event.done, total=event.steps)

        yield tell
