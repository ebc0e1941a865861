"""The verb `decode`: an .er file back into arrays."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from elbowroom.cli.wording import counted


def decode(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A file made by encode.")],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="A .npy, .npz, .safetensors or raw (.bin, .dat, .raw) file."
        ),
    ],
    name: Annotated[str | None, typer.Option(help="Decode only the array of this name.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads to use; as many as torch by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Decode a file; OUT's ending says into what."""
    from elbowroom import decode as decode_blob
    from elbowroom.cli.arrays import NAMES, Spec
    from elbowroom.cli.encode import show_progress
    from elbowroom.cli.sinks import (
        check_ending,
        check_sink,
        open_sink,
        refuse_existing,
        write_aside,
    )
    from elbowroom.cli.storage import naming, open_stored, refuse_name

    check_ending(target)
    refuse_existing(target, force, source)
    rows: list[dict[str, Any]] = []
    with open_stored(source) as stored:
        wanted = list(stored.sizes) if name is None else [name]
        if name is not None and not (stored.named and name in stored.sizes):
            refuse_name(source, name, stored)
        # A bare blob has no name; where one is needed the file lends its own.
        labels = {key: key if stored.named else source.stem for key in wanted}
        specs: list[Spec] = []
        for key in wanted:
            with naming(source):
                blob = stored.read(key)
            specs.append(Spec(name=labels[key], dtype=blob.recipe.dtype, shape=tuple(blob.shape)))
        check_sink(target, specs)
        keys = {label: key for key, label in labels.items()}
        total = sum(spec.nbytes for spec in specs)
        with (
            show_progress(total, hidden=as_json) as advance,
            write_aside(target, force) as file,
            open_sink(file, target, specs) as sink,
        ):
            for spec in sink.specs:
                with naming(source):
                    blob = stored.read(keys[spec.name])
                with naming(f"{source}, blob {spec.name!r}" if stored.named else source):
                    start = time.perf_counter()
                    array = decode_blob(blob, threads=threads)
                seconds = time.perf_counter() - start
                sink.write(spec, array)
                advance(spec.nbytes)
                rows.append(
                    {
                        "name": spec.name,
                        "dtype": NAMES[spec.dtype][0],
                        "shape": list(spec.shape),
                        "encoded_bytes": blob.nbytes,
                        "raw_bytes": spec.nbytes,
                        "seconds": seconds,
                        "gb_per_s": spec.nbytes / seconds / 1e9,
                    }
                )
    if as_json:
        typer.echo(json.dumps({"file": str(target), "arrays": rows}, indent=2))
    else:
        _print_rows(rows, target)


def _print_rows(rows: list[dict[str, Any]], target: Path) -> None:
    from elbowroom.cli.tables import print_table

    headings = ["name", "dtype", "shape", "encoded", "raw bytes", "seconds", "GB/s"]
    lines = [
        [
            row["name"],
            row["dtype"],
            "x".join(map(str, row["shape"])) or "scalar",
            f"{row['encoded_bytes']:,}",
            f"{row['raw_bytes']:,}",
            f"{row['seconds']:.3f}",
            f"{row['gb_per_s']:.2f}",
        ]
        for row in rows
    ]
    remark = f"{target}: {counted(target.stat().st_size, 'byte')}"
    print_table(headings, lines, remarks=[remark], text_columns=(0, 1, 2))
