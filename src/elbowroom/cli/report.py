"""The verb `report`: shows a run, finished or not, on one page."""

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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

        with _remedied(tensorboard, "--tensorboard"):
            places = export(run, tensorboard)
        if not as_json:
            typer.echo(f"events of {len(places)} trainings: tensorboard --logdir {tensorboard}")
    if as_json:
        typer.echo(json.dumps(run.to_json(), indent=2, allow_nan=False))
        return
    page = folder / "report.html" if out is None else out
    with _remedied(page, "--out"):
        page = write_page(run, page, is_named=out is not None)
    if page.is_file():  # and not what somebody reads from at the other end
        typer.echo(f"{page} ({page.stat().st_size / 1e6:.1f} MB)")
    if open_it and not _open(page):
        typer.echo(f"elbowroom: no browser could be started here: open {page} in one", err=True)
        sys.exit(1)


@contextmanager
def _remedied(path: Path, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise OSError(
            f"{path} could not be written ({error.strerror or error}): "
            f"{'make room, or ' if is_full else ''}name another place with {option}"
        ) from None


def write_page(run: "Run", path: Path, *, is_named: bool = True) -> Path:
    """Write the page beside its place and move it there, so that nobody sees half of it.

    A link that the user has named is followed. One that lies in a folder by the name of our own
    page is whoever's has filled that folder: it is replaced.
    """
    from elbowroom.errors import InvalidArgument
    from elbowroom.report.render import render

    if path.is_dir():
        path, is_named = path / "report.html", False
    text = render(run)
    if path.exists() and not path.is_file() and (is_named or not path.is_symlink()):
        # A device or a pipe has no place to move anything to.
        path.write_text(text, encoding="utf-8")
        return path
    # A link stays one: it is its target that is written.
    target = Path(os.path.realpath(path)) if is_named else path
    if is_named and target.is_symlink():
        raise InvalidArgument(
            f"{path} is a link that leads to itself: name another place with --out"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f"{target.name}.{os.getpid()}.part")
    aside.unlink(missing_ok=True)
    try:
        with aside.open("x", encoding="utf-8") as file:
            file.write(text)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
    return path


def _open(page: Path) -> bool:
    import webbrowser

    return webbrowser.open(page.resolve().as_uri())
