"""The verb `data`: which data sets there are, and fetching or making one."""

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from elbowroom.science.catalogue import Dataset
    from elbowroom.science.retrieval import Tell

app = typer.Typer(no_args_is_help=True, help="List, fetch and make data sets.")

Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder", metavar="DIR", help="The data folder; by default ELBOWROOM_DATA or the user's."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.callback()
def _group() -> None:
    """List, fetch and make data sets."""


@app.command()
def ls(
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare checksums too, not only sizes.")
    ] = False,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Show every data set, whether it is here, and how to get it."""
    from elbowroom.cli.tables import print_table
    from elbowroom.science.catalogue import read_catalogue
    from elbowroom.science.data import choose_target, find_place, list_folders, survey

    where = f" --folder {shlex.quote(str(folder))}" if folder else ""
    rows: list[dict[str, Any]] = []
    for dataset in read_catalogue().values():
        place = find_place(dataset, folder)
        rows.append(
            {
                "name": dataset.name,
                "state": survey(dataset, folder, verify=verify),
                "bytes": dataset.nbytes,
                "folder": str(place) if place else None,
                "how": _how(dataset),
                "about": dataset.about,
                "origin": dataset.origin,
                "licence": dataset.licence,
                "files": [file.path for file in dataset.files],
            }
        )
    places = {
        "looked_in": [str(place) for place in list_folders(folder)],
        "new_data_goes_to": str(choose_target(folder)),
    }
    if as_json:
        typer.echo(json.dumps({**places, "verified": verify, "datasets": rows}, indent=2))
        return
    print_table(
        ["name", "state", "MB", "how", "what", "licence"],
        [
            [
                *(row["name"], row["state"], f"{row['bytes'] / 1e6:.1f}", row["how"]),
                *(row["about"], row["licence"]),
            ]
            for row in rows
        ],
        text_columns=(0, 1, 3, 4, 5),
        remarks=[
            f"Looked in {', '.join(places['looked_in'])}; 'elbowroom data get NAME{where}' puts "
            f"data into {places['new_data_goes_to']}."
        ],
    )


@app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `elbowroom data ls` lists it.")],
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Fetch a data set; what is here and whole already stays as it is."""
    from elbowroom.science.catalogue import find_dataset
    from elbowroom.science.data import choose_target, locate
    from elbowroom.science.retrieval import retrieve

    dataset = find_dataset(name)
    if dataset.shipped:
        target, brought = next(iter(locate(name).values())).parent, []
    else:
        target = choose_target(folder)
        with _show_progress(hidden=as_json) as tell:
            brought = retrieve(dataset, target, tell=tell)
    if as_json:
        facts = {"name": name, "folder": str(target), "brought": [str(path) for path in brought]}
        typer.echo(json.dumps({**facts, "licence": dataset.licence}, indent=2))
    elif brought:
        size = sum(path.stat().st_size for path in brought)
        typer.echo(f"{name}: {len(brought)} files, {size / 1e6:.1f} MB, in {target}")
        typer.echo(f"From {dataset.origin}. Licence: {dataset.licence}.")
    else:
        typer.echo(f"{name} is whole already, in {target}")


@app.command()
def make(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set that is put by hand.")],
    source: Annotated[
        Path, typer.Argument(metavar="FROM", help="The folder that holds the originals.")
    ],
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Make the file of a data set from what its authors publish."""
    from elbowroom.science.catalogue import find_dataset
    from elbowroom.science.conversion import convert
    from elbowroom.science.data import choose_target
    from elbowroom.science.retrieval import make_folder

    dataset = find_dataset(name)
    target = choose_target(folder)
    make_folder(target)
    path = convert(dataset, source, target)
    if as_json:
        facts = {"name": name, "folder": str(target), "made": str(path)}
        typer.echo(json.dumps({**facts, "licence": dataset.licence}, indent=2))
        return
    typer.echo(f"{name}: {path}, {path.stat().st_size / 1e6:.1f} MB, with the right values")
    typer.echo(f"From {dataset.origin}. Licence: {dataset.licence}.")


# For those who look for it under this name.
app.command("list", hidden=True)(ls)


def _how(dataset: "Dataset") -> str:
    if dataset.source is None:
        return "make (by hand)" if dataset.originals else "by hand"
    return "with the package" if dataset.shipped else f"get ({dataset.source.kind})"


@contextmanager
def _show_progress(*, hidden: bool) -> "Iterator[Tell]":
    """Show a bar on a terminal; yield what moves it."""
    if hidden or not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        *(TextColumn("{task.description}"), BarColumn(), DownloadColumn()),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("")

        def tell(what: str, done: int, total: int | None) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield tell
