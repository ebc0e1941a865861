"""The verb `report`: shows a run, finished or not, on one page."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from elbowroom.report.model import Run


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page; RUN/report.html if not given.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    tensorboard: Annotated[
        Path | None,
        typer.Option("--tensorboard", metavar="DIR", help="Write events for TensorBoard as well."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was measured as JSON; writes no page.")
    ] = False,
) -> None:
    """Make one HTML page of a run that was recorded, or still is."""
    from elbowroom.report.reading import read_run

    run = read_run(folder)
    if tensorboard is not None:
        from elbowroom.report.tensorboard import export

        places = export(run, tensorboard)
        if not as_json:
            typer.echo(f"events of {len(places)} trainings: tensorboard --logdir {tensorboard}")
    if as_json:
        typer.echo(json.dumps(run.to_json(), indent=2, allow_nan=False))
        return
    page = write_page(run, folder / "report.html" if out is None else out)
    typer.echo(f"{page} ({page.stat().st_size / 1e6:.1f} MB)")
    if open_it and not _open(page):
        typer.echo(f"elbowroom: no browser could be started here: open {page} in one", err=True)
        sys.exit(1)


def write_page(run: "Run", path: Path) -> Path:
    """Write the page beside its place and move it there, so that nobody sees half of it."""
    from elbowroom.report.render import render

    if path.is_dir():
        path = path / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".part")
    try:
        aside.write_text(render(run), encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def _open(page: Path) -> bool:
    import webbrowser

    return webbrowser.open(page.resolve().as_uri())
