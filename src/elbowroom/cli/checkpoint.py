"""The verb `checkpoint`: what a store has, whether it is whole, and getting it in and out."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from elbowroom.cli import checkpoint_tables as tables
from elbowroom.cli.wording import counted
from elbowroom.errors import CorruptData, ElbowroomError, InvalidArgument

if TYPE_CHECKING:
    from elbowroom.store.checkpoint.naming import Name
    from elbowroom.store.checkpoint.retention import Keep
    from elbowroom.store.checkpoint.store import Collected, Store

EXIT_DAMAGED = 1

app = typer.Typer(no_args_is_help=True, help="Look into, verify and exchange checkpoints.")

Where = Annotated[
    str, typer.Argument(metavar="STORE", help="The folder of a run's checkpoints, or its address.")
]
Step = Annotated[
    int | None,
    typer.Option("--step", metavar="N", min=0, help="Of this step; the newest by default."),
]
Target = Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.callback()
def _group() -> None:
    """Look into, verify and exchange checkpoints."""


@app.command()
def ls(where: Where, as_json: Json = False) -> None:
    """List the checkpoints of a store, the newest last.

    Alone is what the removal of a checkpoint would free, shared is what others need as well.
    """
    from elbowroom.store.checkpoint.comparison import survey

    with _opened(where) as store:
        found = survey(store)
    document = {"store": where, **tables.list_document(found, time.time())}
    (tables.print_json if as_json else tables.print_list)(document)


@app.command()
def verify(
    where: Where,
    step: Step = None,
    every: Annotated[bool, typer.Option("--all", help="Verify all checkpoints.")] = False,
    as_json: Json = False,
) -> None:
    """Read a checkpoint, compare it with its digests, and list all damage."""
    from elbowroom.store.checkpoint.comparison import find_checkpoint, survey

    if every and step is not None:
        raise InvalidArgument("--all is all of them, and --step is one: leave one out")
    with _opened(where) as store, tables.show_progress(hidden=as_json) as tell:
        newest = find_checkpoint(store, step)
        names = store.names() if every else [newest]
        known = {holding.name: holding for holding in survey(store).holdings}
        total = sum(known[name].state_bytes for name in names)
        rows: list[dict[str, Any]] = []
        for name in names:
            damage = store.verify(name, lambda nbytes: tell(nbytes, total))
            holding = known[name]
            facts = {"tensors": holding.tensors, "bytes": holding.state_bytes}
            damages = tables.damage_document(damage)
            rows.append({**tables.identity(name), **facts, "damage": damages})
    document = {"store": where, "checkpoints": rows}
    (tables.print_json if as_json else tables.print_verdicts)(document)
    damaged = [str(row["step"]) for row in rows if row["damage"]]
    if damaged:
        _tell_damage(f"{where}: damaged, of {len(rows)} checkpoints, step {', '.join(damaged)}")


@app.command()
def diff(
    where: Where,
    before: Annotated[int, typer.Argument(metavar="A", min=0, help="The step to compare with.")],
    after: Annotated[int, typer.Argument(metavar="B", min=0, help="The step that is compared.")],
    values: Annotated[
        bool, typer.Option("--values", help="Read what changed, and measure by how much.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what changed from one checkpoint to another.

    The share of a tensor that changed is told by hash trees, in pieces of 16 KiB.
    """
    from elbowroom.store.checkpoint.comparison import compare, find_checkpoint

    with _opened(where) as store, tables.show_progress(hidden=as_json or not values) as tell:
        names = [find_checkpoint(store, step) for step in (before, after)]
        old, new = (store.manifest(name) for name in names)
        found = compare(store, old, new, values=values, tell=tell)
    facts = {
        "store": where,
        **{key: tables.identity(n) for key, n in zip(("before", "after"), names, strict=True)},
    }
    document = {**facts, **tables.diff_document(found)}
    if as_json:
        tables.print_json(document)
    else:
        tables.print_diff(document, values=values)
    problems = [change.problem for change in found.tensors if change.problem]
    if problems:
        _tell_damage(f"{where}: {counted(len(problems), 'tensor')} damaged: {problems[0]}")


@app.command()
def tree(where: Where, step: Step = None, as_json: Json = False) -> None:
    """Show the state of a checkpoint as a tree, and how each tensor is stored."""
    from elbowroom.store.checkpoint.comparison import find_checkpoint
    from elbowroom.store.checkpoint.outline import describe

    with _opened(where) as store:
        name = find_checkpoint(store, step)
        manifest = store.manifest(name)
        nodes = [describe(manifest, rank) for rank in range(len(manifest.parts))]
    if as_json:
        ranks = [tables.tree_document(node) for node in nodes]
        tables.print_json({"store": where, **tables.identity(name), "ranks": ranks})
    else:
        tables.print_tree(nodes, f"{where}, step {name.step}")


@app.command()
def restore(
    where: Where, target: Target, step: Step = None, force: Force = False, as_json: Json = False
) -> None:
    """Write the whole state of a checkpoint as one file for torch.load."""
    from elbowroom.store.checkpoint.tensorfile import is_safetensors

    with _guarded():
        if is_safetensors(target):
            raise InvalidArgument(
                f"{target} can hold nothing but tensors, and a state is more than that: name a "
                ".pt file, or see 'elbowroom checkpoint export'"
            )
    _export(where, target, step=step, what=None, force=force, as_json=as_json)


@app.command()
def export(
    where: Where,
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="The .safetensors or .pt file to write.")
    ],
    step: Step = None,
    what: Annotated[str, typer.Option(help="The object to write, by its name.")] = "model",
    tensors_only: Annotated[
        bool, typer.Option("--tensors-only", help="Leave out what is no tensor.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write one object of a checkpoint as a file for other programs."""
    _export(
        *(where, target),
        step=step,
        what=what,
        tensors_only=tensors_only,
        force=force,
        as_json=as_json,
    )


@app.command("import")
def import_(
    where: Annotated[
        str, typer.Argument(metavar="STORE", help="The folder, which is made if not there.")
    ],
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A .safetensors or .pt file, or a folder of torch.distributed.checkpoint.",
        ),
    ],
    step: Annotated[
        int, typer.Option("--step", metavar="N", min=0, help="The step that it stands for.")
    ] = 0,
    what: Annotated[str, typer.Option(help="The name of the object that it is.")] = "model",
    key: Annotated[
        str | None,
        typer.Option(help="Where IN has it, if it has several; the same name by default."),
    ] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Also to a STORE that has checkpoints.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a checkpoint of a file, from which a run can start."""
    from elbowroom.store.checkpoint.exchange import import_file

    with _guarded():
        name = import_file(where, source, step=step, what=what, key=key, add=add)
    with _opened(where) as store:
        part = store.manifest(name).parts[0]
    place = f"state[{what!r}]"
    sizes = [part.contents[e.content].nbytes for e in part.entries if e.where.startswith(place)]
    facts = {"what": what, "tensors": len(sizes), "bytes": sum(sizes)}
    document = {"store": where, "file": str(source), **tables.identity(name), **facts}
    if as_json:
        tables.print_json(document)
    else:
        tables.print_lines(
            [
                f"{where}: step {step}, {what} of {counted(len(sizes), 'tensor')}, "
                f"{counted(sum(sizes), 'byte')}"
            ]
        )


@app.command()
def branch(
    where: Where,
    target: Annotated[str, typer.Argument(metavar="NEW", help="The folder of the new run.")],
    step: Step = None,
    what: Annotated[
        str | None, typer.Option(help="Only this object, for a run that begins at step 0.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the first checkpoint of a new run, which shares its files with STORE."""
    from elbowroom.store.checkpoint.branching import branch as make

    with _guarded():
        done = make(where, target, step=step, what=what)
    shared = {"linked_bytes": done.linked_bytes, "copied_bytes": done.copied_bytes}
    facts = {"origin": tables.identity(done.origin), "tensors": done.tensors, **shared}
    document = {"store": where, "new": target, **tables.identity(done.name), **facts}
    if as_json:
        tables.print_json(document)
        return
    tables.print_lines(
        [
            f"{target}: step {done.name.step}, {what or 'all'} of step {done.origin.step} of "
            f"{where}, {counted(done.tensors, 'tensor')}; {counted(done.linked_bytes, 'byte')} "
            f"shared, {counted(done.copied_bytes, 'byte')} copied"
        ]
    )


@app.command()
def gc(
    where: Where,
    keep_last: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Keep so many of the last.")
    ] = None,
    keep_every: Annotated[
        int | None,
        typer.Option(metavar="K", min=1, help="Keep one each K steps, and the newest."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove old checkpoints, and files that no checkpoint needs.

    Without options, no checkpoint is removed.
    """
    from elbowroom.store.checkpoint.retention import Keep
    from elbowroom.store.checkpoint.store import Store

    keep = Keep(last=keep_last, every=keep_every)
    if keep_every is not None and keep_last is None:
        keep = Keep(last=1, every=keep_every)
    with _guarded():
        done, left = _collect(where, Store.open(where), keep, dry_run)
    document = {
        "store": where,
        "dry_run": dry_run,
        "removed": [tables.identity(name) for name in done.names],
        "kept": [tables.identity(name) for name in left],
        "files": done.files,
        "bytes": done.nbytes,
    }
    if as_json:
        tables.print_json(document)
        return
    steps = f" (step {', '.join(str(name.step) for name in done.names)})" if done.names else ""
    tables.print_lines(
        [
            f"{where}: {counted(len(done.names), 'checkpoint')}{steps} and "
            f"{counted(done.files, 'file')} of {counted(done.nbytes, 'byte')} "
            f"{'would be removed' if dry_run else 'removed'}, "
            f"{counted(len(left), 'checkpoint')} kept"
        ]
    )


def _collect(
    where: str, store: "Store", keep: "Keep", dry_run: bool
) -> "tuple[Collected, list[Name]]":
    from elbowroom.store.checkpoint.comparison import survey

    with store.place.lock("writer") as is_held:
        if not is_held:
            raise InvalidArgument(
                f"a run is writing checkpoints to {where}: end it, or wait for it"
            )
        names = store.names()
        left = keep.choose(names)
        for holding in survey(store).holdings:
            # What it needs is unknown, or it is not what should be left of a run.
            if holding.problem and holding.name in left:
                if not holding.is_readable or len(left) < len(names):
                    raise CorruptData(
                        f"nothing is removed, since step {holding.name.step}, which would stay, is "
                        f"damaged: {holding.problem}"
                    )
        # Where no lock tells, what is newer than all checkpoints may be in the making.
        upto = max((name.order for name in names), default=0) if store.place.is_claimed() else None
        planned = store.collect(left, upto=upto, dry=True)
        if dry_run:
            return planned, left
        done = store.collect(left, upto=upto)
        if done != planned:
            raise InvalidArgument(f"someone is reading checkpoints of {where}: try again later")
        return done, left


def _export(
    where: str,
    target: Path,
    *,
    step: int | None,
    what: str | None,
    force: bool,
    as_json: bool,
    tensors_only: bool = False,
) -> None:
    from elbowroom.cli.sinks import refuse_existing
    from elbowroom.store.checkpoint.exchange import export_file

    with _guarded(), tables.show_progress(hidden=as_json) as tell:
        refuse_existing(target, force)
        done = export_file(
            *(where, target),
            step=step,
            what=what,
            tensors_only=tensors_only,
            replace=force,
            tell=tell,
        )
    facts = {"store": where, "file": str(target), "what": what or "everything"}
    document = {**facts, **tables.export_document(done)}
    (tables.print_json if as_json else tables.print_export)(document)


@contextmanager
def _opened(where: str) -> "Iterator[Store]":
    """Open a store from which nothing is removed meanwhile."""
    from elbowroom.store.checkpoint.store import Store

    with _guarded():
        store = Store.open(where)
        with store.reading():
            yield store


@contextmanager
def _guarded() -> Iterator[None]:
    """Tell of damage in one sentence, in which no name from a file commands the terminal."""
    try:
        yield
    except CorruptData as error:
        _tell_damage(str(error))
    except ElbowroomError as error:
        raise type(error)(tables.printable(error)) from None
    except NotADirectoryError as error:
        said = "is a file" if Path(error.filename or "").is_file() else "is not there"
        raise InvalidArgument(f"{error.filename} {said}: a folder is needed") from None
    except (MemoryError, RuntimeError) as error:
        # torch has no error of its own for want of memory; one of depth is a RuntimeError, too.
        if isinstance(error, RuntimeError) and not isinstance(error, RecursionError):
            if "allocate memory" not in str(error):
                raise
        _tell_damage("a checkpoint claims to be larger or deeper than this machine can hold")


def _tell_damage(said: str) -> NoReturn:
    typer.echo(f"elbowroom: {tables.printable(said)}", err=True)
    raise typer.Exit(EXIT_DAMAGED)
