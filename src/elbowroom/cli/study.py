"""Trains networks under many sorts of compression, and tells what each does to what they learn."""

import errno
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from elbowroom.study.campaign import Ending
    from elbowroom.study.cells import Cell
    from elbowroom.study.summary import Comparison
    from elbowroom.study.treatments import Treatment

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
    network: Annotated[str, typer.Option(help=f"Networks, {_LIST}.", show_default=False)] = "",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds, from 0 on.", show_default=False)
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at the same time.")] = 1,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of every training.", show_default=False)
    ] = None,
    tolerance: Annotated[
        str, typer.Option(help=f"Rooms of these tolerances, {_LIST}.", show_default=False)
    ] = "",
    rule: Annotated[
        str, typer.Option(help=f"Rules of the rooms, {_LIST}: variance, comet, certified.")
    ] = "variance",
    codec: Annotated[
        str, typer.Option(help=f"Codecs of fixed bounds, {_LIST}: dense, block, group.")
    ] = "dense",
    mode: Annotated[
        str, typer.Option(help=f"Modes of bounds, {_LIST}: absolute, range, pointwise, bits.")
    ] = "range",
    bound: Annotated[
        str, typer.Option(help=f"Fixed bounds, {_LIST}; of bits, their number.", show_default=False)
    ] = "",
    kind: Annotated[
        str, typer.Option(help=f"Kinds of kept tensors with a fixed bound, {_LIST}.")
    ] = "all",
    share: Annotated[
        str,
        typer.Option(
            help=f"Shares of the batch instead of compression, {_LIST}.", show_default=False
        ),
    ] = "",
    dither: Annotated[
        bool, typer.Option(help="Dither fixed bounds where that is possible.")
    ] = True,
    data: Annotated[
        Path | None, typer.Option(help="Where the data is.", show_default=False)
    ] = None,
    plan: Annotated[bool, typer.Option(help="Only list what would be trained.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train with and without compression, and compare what is learnt, seed by seed."""
    from elbowroom.study.journal import locked, read_journal
    from elbowroom.study.presets import find_preset, list_treatments, plan_cells

    question = find_preset(preset)
    networks = _words(network) or list(question.networks)
    own = _make_treatments(tolerance, rule, codec, mode, bound, kind, dither)
    own += _make_smaller(share, own)
    cells = plan_cells(
        networks,
        {name: own or list_treatments(preset, name) for name in networks},
        range(seeds or question.seeds),
        pace=question.pace,
        steps=steps,
    )
    if plan:
        _print_plan(cells, read_journal(out)[0], as_json)
        return
    with locked(out):
        ending = _run(cells, out, jobs=jobs, data=data, hidden=as_json)
        _finish(cells, ending, out, as_json)
    if ending.failures:
        raise typer.Exit(1)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str, option: str) -> list[float]:
    from elbowroom.errors import InvalidArgument

    try:
        return [float(word) for word in _words(text)]
    except ValueError:
        raise InvalidArgument(
            f"{option} takes numbers with commas between, such as 0.01,0.1: got {text!r}"
        ) from None


def _make_treatments(
    tolerance: str, rule: str, codec: str, mode: str, bound: str, kind: str, dither: bool
) -> "list[Treatment]":
    """Every combination of what the options name; none if neither tolerances nor bounds are."""
    from elbowroom.study.treatments import Treatment

    made: list[Treatment] = []
    rooms = itertools.product(_numbers(tolerance, "--tolerance"), _words(rule))
    for value, name in rooms:
        made.append(Treatment(method="room", tolerance=value, rule=name))  # type: ignore[arg-type]
    for word, how, where, value in itertools.product(
        _words(codec), _words(mode), _words(kind), _numbers(bound, "--bound")
    ):
        fields: dict[str, Any] = {"codec": word, "mode": how, "kind": where, "bound": value}
        dithered = dither and how != "pointwise"
        made.append(Treatment(method="fixed", dithered=dithered, **fields))
    return [Treatment(), *made] if made else []


def _make_smaller(shares: str, others: "list[Treatment]") -> "list[Treatment]":
    from elbowroom.study.treatments import Treatment, smaller

    made = [smaller(share) for share in _numbers(shares, "--share")]
    return made if others or not made else [Treatment(), *made]


def _print_plan(cells: "list[Cell]", rows: dict[str, Any], as_json: bool) -> None:
    from elbowroom.cli.tables import print_table

    if as_json:
        planned = [{**cell.settings(), "key": cell.key, "done": cell.key in rows} for cell in cells]
        typer.echo(json.dumps({"cells": planned}, indent=2, allow_nan=False))
        return
    lines = [
        [cell.network, cell.treatment.label, str(cell.seed), "yes" if cell.key in rows else "no"]
        for cell in cells
    ]
    print_table(["network", "treatment", "seed", "done"], lines, text_columns=(0, 1))


def _run(cells: "list[Cell]", out: Path, *, jobs: int, data: Path | None, hidden: bool) -> "Ending":
    from elbowroom.study.campaign import run_campaign
    from elbowroom.study.journal import read_journal
    from elbowroom.study.progress import show_progress

    def count() -> int:
        rows = read_journal(out)[0]
        return sum(cell.key in rows for cell in cells)

    try:
        with show_progress(len(cells), count(), hidden=hidden) as tell:
            return run_campaign(cells, out, jobs=jobs, data=data, tell=tell)
    except (KeyboardInterrupt, SystemExit):
        typer.echo(
            f"elbowroom: interrupted after {count()} of {len(cells)} trainings; {_AGAIN}", err=True
        )
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        typer.echo(
            f"elbowroom: there is no room left on the disk of {out}, where {count()} of "
            f"{len(cells)} trainings are written down: make room; {_AGAIN}",
            err=True,
        )
        raise typer.Exit(1) from None


_AGAIN = "the same command goes on from there"


def _finish(cells: "list[Cell]", ending: "Ending", out: Path, as_json: bool) -> None:
    """Write table and page of all that the folder has, and tell of what was asked for."""
    from elbowroom.study.drawing import write_page
    from elbowroom.study.summary import compare
    from elbowroom.study.table import write_table

    table = write_table(ending.rows.values(), out)
    page = write_page(ending.rows.values(), out)
    asked = [ending.rows[cell.key] for cell in cells if cell.key in ending.rows]
    found = compare(asked)
    diverged = [row for row in asked if row["outcome"]["state"] == "diverged"]
    if as_json:
        facts = {
            "cells": {
                "asked": len(cells),
                "before": ending.already,
                "trained": ending.trained,
                "diverged": len(diverged),
                "failed": len(ending.failures),
                "damaged_lines": ending.damaged,
            },
            "failures": [{"cell": cell.label, "said": said} for cell, said in ending.failures],
            "comparisons": [comparison.record() for comparison in found],
            "table": str(table),
            "page": str(page),
        }
        typer.echo(json.dumps(facts, indent=2, allow_nan=False))
        return
    _print_comparisons(found)
    if ending.damaged:
        typer.echo(
            f"elbowroom: {ending.damaged} damaged line(s) of the journal did not count: what they "
            "stood for was trained again if it was asked for",
            err=True,
        )
    for cell, said in ending.failures:
        typer.echo(f"elbowroom: {cell.label}: {said}; {_AGAIN}", err=True)
    typer.echo(f"Table: {table}\nPage: {page}")


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
        *("verdict", "smaller", "gradient error", "step time"),
    ]
    print_table(
        headings,
        lines,
        text_columns=(0, 1, 3, 8),
        remarks=[
            "Gain is the mean difference to plain training over pairs of equal seeds, positive "
            "where the treatment is better; its error is one standard error of that mean.",
            "Gradient error is a share of the gradient's own variance; step time is relative to "
            "plain's.",
        ],
    )


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2g}"
