"""Trains networks under many sorts of compression, and tells what each does to what they learn."""

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from elbowroom.study.campaign import Ending, Show, Start, Tell
    from elbowroom.study.cells import Cell
    from elbowroom.study.journal import Row
    from elbowroom.study.summary import Comparison

PRESET = "quick"
EXIT_INTERRUPTED = 130

_LIST = "one or several, with commas between"


def study(
    preset: Annotated[
        str,
        typer.Option(help="The question: accuracy, tolerances, kinds, modes or quick."),
    ] = PRESET,
    out: Annotated[Path, typer.Option(help="The folder of the study; it can be resumed.")] = Path(
        "study"
    ),
    network: Annotated[
        str | None, typer.Option(help=f"Networks, {_LIST}.", show_default=False)
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds, from 0 on.", show_default=False)
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at the same time.")] = 1,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of every training.", show_default=False)
    ] = None,
    tolerance: Annotated[
        str | None, typer.Option(help=f"Rooms of these tolerances, {_LIST}.", show_default=False)
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help=f"Rules of the rooms, {_LIST}: variance, comet, certified.",
            show_default="variance",
        ),
    ] = None,
    codec: Annotated[
        str | None,
        typer.Option(
            help=f"Codecs of fixed bounds, {_LIST}: dense, block, group.", show_default="dense"
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help=f"Modes of bounds, {_LIST}: absolute, range, pointwise, bits.",
            show_default="range",
        ),
    ] = None,
    bound: Annotated[
        str | None,
        typer.Option(help=f"Fixed bounds, {_LIST}; of bits, their number.", show_default=False),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help=f"Kinds of kept tensors with a fixed bound, {_LIST}.", show_default="all"
        ),
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(
            help=f"Shares of the batch instead of compression, {_LIST}.", show_default=False
        ),
    ] = None,
    dither: Annotated[
        bool | None,
        typer.Option(
            "--dither/--no-dither",
            help="Dither fixed bounds where that is possible.",
            show_default="dither",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Where the data is.", show_default=False)
    ] = None,
    plan: Annotated[
        bool, typer.Option(help="Only list what would be trained, and how much that is.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train with and without compression, and compare what is learnt, seed by seed."""
    from elbowroom.folders import held
    from elbowroom.study.choices import Choices, make_treatments, split_words
    from elbowroom.study.journal import read_journal
    from elbowroom.study.presets import find_preset, list_treatments, plan_cells

    question = find_preset(preset)
    networks = split_words(network, "--network") or list(question.networks)
    own, misfits = make_treatments(
        Choices(
            tolerance=tolerance,
            rule=rule,
            codec=codec,
            mode=mode,
            bound=bound,
            kind=kind,
            dither=dither,
            share=share,
        )
    )
    cells = plan_cells(
        networks,
        {name: own or list_treatments(preset, name) for name in networks},
        range(seeds or question.seeds),
        pace=question.pace,
        steps=steps,
    )
    if misfits:
        typer.echo(
            f"elbowroom: left out, since they do not go together: {', '.join(misfits)}", err=True
        )
    if plan:
        _print_plan(cells, list(read_journal(out)[0].values()), as_json)
        return
    with held(out, "study"), _ended_in_order(cells, out) as tally:
        ending = _run(cells, out, tally, jobs=jobs, data=data, hidden=as_json)
        _finish(cells, ending, out, as_json)
    if ending.failures:
        raise typer.Exit(1)


def _print_plan(cells: "list[Cell]", rows: "list[Row]", as_json: bool) -> None:
    from elbowroom.cli.tables import print_table
    from elbowroom.cli.wording import counted
    from elbowroom.study.workload import count_steps, estimate_seconds

    # Which data a study will find is not known before it is read, so that rows of any count here.
    known = {row["key"] for row in rows}
    left = [cell for cell in cells if cell.key not in known]
    seconds = estimate_seconds(left, rows)
    if as_json:
        planned = [
            {**cell.settings(), "key": cell.key, "steps": cell.length, "done": cell.key in known}
            for cell in cells
        ]
        facts = {
            "trainings": len(cells),
            "trainings_left": len(left),
            "steps": count_steps(cells),
            "steps_left": count_steps(left),
            "seconds_left": seconds,
            "cells": planned,
        }
        typer.echo(json.dumps(facts, indent=2, allow_nan=False))
        return
    lines = [
        [
            *(cell.network, cell.treatment.label, str(cell.seed), f"{cell.length:,}"),
            "yes" if cell.key in known else "no",
        ]
        for cell in cells
    ]
    work = (
        f"{counted(len(cells), 'training')} of {counted(count_steps(cells), 'step')} together; "
        f"{len(left):,} of {counted(count_steps(left), 'step')} left."
    )
    if seconds is None:
        pace = "How long that takes is not known before each network has been trained here once."
    else:
        pace = f"At the step times of this folder, one job needs about {_say_time(seconds)}."
    print_table(
        ["network", "treatment", "seed", "steps", "done"],
        lines,
        text_columns=(0, 1),
        remarks=[work, pace] if left else [work],
    )


def _say_time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class _Tally:
    """How many trainings are written down; None before the journal was compared with the data."""

    def __init__(self) -> None:
        self.done: int | None = None


@contextmanager
def _ended_in_order(cells: "list[Cell]", out: Path) -> Iterator[_Tally]:
    """Say where a study stands that is interrupted or has no room to go on."""
    tally = _Tally()
    try:
        yield tally
    except (KeyboardInterrupt, SystemExit) as end:
        far = "before the first training" if tally.done is None else ""
        far = far or f"after {tally.done} of {len(cells)} trainings"
        typer.echo(f"elbowroom: interrupted {far}; {_AGAIN}", err=True)
        code = end.code if isinstance(end, SystemExit) else EXIT_INTERRUPTED
        raise typer.Exit(code if isinstance(code, int) else EXIT_INTERRUPTED) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        typer.echo(
            f"elbowroom: there is no room left on the disk of {out}, where {tally.done or 0} of "
            f"{len(cells)} trainings are written down: make room; {_AGAIN}",
            err=True,
        )
        raise typer.Exit(1) from None


def _run(
    cells: "list[Cell]", out: Path, tally: _Tally, *, jobs: int, data: Path | None, hidden: bool
) -> "Ending":
    from elbowroom.study.campaign import run_campaign

    show = _make_show(len(cells), tally, hidden=hidden)
    return run_campaign(cells, out, jobs=jobs, data=data, show=show)


def _make_show(cells: int, tally: _Tally, *, hidden: bool) -> "Show":
    from elbowroom.study.campaign import Event
    from elbowroom.study.progress import show_progress

    @contextmanager
    def show(start: "Start") -> "Iterator[Tell]":
        tally.done = start.already
        if not hidden:
            _warn(start)
        with show_progress(cells, start.already, hidden=hidden) as tell:

            def count(event: Event) -> None:
                tally.done = (tally.done or 0) + (event.row is not None)
                tell(event)

            yield count

    return show


def _warn(start: "Start") -> None:
    from elbowroom.cli.wording import counted
    from elbowroom.study.journal import DAMAGED

    if start.damaged:
        typer.echo(
            f"elbowroom: {counted(start.damaged, 'damaged line')} of the journal did not count, "
            f"now in {DAMAGED}: what is asked for of it is trained again",
            err=True,
        )
    if start.other_data:
        typer.echo(
            f"elbowroom: {counted(start.other_data, 'training')} of this folder had other data and "
            "did not count: done again on the data that is found now",
            err=True,
        )


_AGAIN = "the same command goes on from there"


def _finish(cells: "list[Cell]", ending: "Ending", out: Path, as_json: bool) -> None:
    """Write table and page of all that the folder has, and tell of what was asked for."""
    from elbowroom.study.drawing import write_page
    from elbowroom.study.summary import compare
    from elbowroom.study.table import write_table

    table = write_table(ending.rows.values(), out)
    page = write_page(ending.rows.values(), out)
    found = compare(ending.asked)
    diverged = [row for row in ending.asked if row["outcome"]["state"] == "diverged"]
    if as_json:
        facts = {
            "cells": {
                "asked": len(cells),
                "before": ending.start.already,
                "other_data": ending.start.other_data,
                "trained": ending.trained,
                "diverged": len(diverged),
                "failed": len(ending.failures),
                "damaged_lines": ending.start.damaged,
            },
            "failures": [
                {"cell": one.cell.label, "said": one.said, "lasting": one.lasting}
                for one in ending.failures
            ],
            "comparisons": [comparison.record() for comparison in found],
            "table": str(table),
            "page": str(page),
        }
        typer.echo(json.dumps(facts, indent=2, allow_nan=False))
        return
    _print_comparisons(found)
    for one in ending.failures:
        typer.echo(f"elbowroom: {one.cell.label}: {one.said}; {_advise(one.lasting)}", err=True)
    typer.echo(f"Table: {table}\nPage: {page}")


def _advise(lasting: bool) -> str:
    if lasting:
        return "the same command fails again until that is changed"
    return "the same command tries it again"


def _print_comparisons(found: "list[Comparison]") -> None:
    from elbowroom.cli.tables import print_table
    from elbowroom.report.wording import say_number, say_ratio

    lines = [
        [
            c.network,
            c.treatment.label,
            str(c.seeds),
            c.metric,
            say_number(c.plain, 4),
            say_number(c.value, 4),
            _signed(c.gain),
            say_number(c.error, 2),
            c.verdict,
            say_ratio(c.ratio),
            say_number(c.gradient_error, 2),
            "–" if c.slowdown is None else f"{c.slowdown:.2f}",
        ]
        for c in found
    ]
    headings = [
        *("network", "treatment", "pairs", "metric", "plain", "treated", "gain", "± error"),
        *("verdict", "smaller", "gradient error", "time × plain"),
    ]
    print_table(
        headings,
        lines,
        text_columns=(0, 1, 3, 8),
        remarks=[
            "Gain is the mean difference to plain training over pairs of equal seeds, positive "
            "where the treatment is better; its error is one standard error of that mean.",
            "Gradient error is a share of the gradient's own variance; time × plain is the median "
            "of a step's time over plain's.",
        ],
    )


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2g}"
