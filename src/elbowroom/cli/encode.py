"""The verb `encode`: arrays of a file into an .er file, within a bound that is checked."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elbowroom.cli.wording import compared, counted
from elbowroom.errors import InvalidArgument

if TYPE_CHECKING:
    from elbowroom.bench.verification import Verdict
    from elbowroom.codec.bound import Bound

PROGRESS_FROM_BYTES = 64 * 10**6


def encode(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN", help="A .npy, .npz, .safetensors or raw (.bin, .dat, .raw) file."
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The .er file to write.")],
    absolute: Annotated[
        float | None, typer.Option(metavar="E", help="No value moves farther than this.")
    ] = None,
    range_: Annotated[
        float | None,
        typer.Option("--range", metavar="R", help="The same, as a share of the array's range."),
    ] = None,
    pointwise: Annotated[
        float | None, typer.Option(metavar="R", help="The same, as a share of each value.")
    ] = None,
    lossless: Annotated[bool, typer.Option("--lossless", help="Every bit comes back.")] = False,
    keep_sign: Annotated[
        bool, typer.Option("--keep-sign", help="No value changes its sign or becomes zero.")
    ] = False,
    codec: Annotated[
        Literal["auto", "block", "dense", "raw"],
        typer.Option(help="block is fast, dense is small, auto follows --effort."),
    ] = "auto",
    effort: Annotated[
        Literal["ratio", "balanced", "speed"], typer.Option(help="What matters more.")
    ] = "ratio",
    dither: Annotated[
        int | None, typer.Option(metavar="SEED", help="Make errors noise that averages out.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Element type of a raw file, such as float32.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="Shape of a raw file, such as 64,3,32,32.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads to use; as many as torch by default.")
    ] = None,
    verify: Annotated[
        bool, typer.Option(help="Decode everything and compare before the file appears.")
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Encode the arrays of a file."""
    from elbowroom import Blob, decode
    from elbowroom import encode as encode_array
    from elbowroom.bench.verification import verify as compare
    from elbowroom.cli.arrays import NAMES
    from elbowroom.cli.sinks import check_ending, refuse_existing, write_aside
    from elbowroom.cli.sources import open_source
    from elbowroom.cli.storage import naming
    from elbowroom.codec.archive import ArchiveWriter

    bound = choose_bound(absolute, range_, pointwise, lossless, keep_sign)
    check_ending(target, encoded=True)
    refuse_existing(target, force, source)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    with open_source(source, dtype, shape) as opened, write_aside(target, force) as file:
        archive = ArchiveWriter(file, list(opened.sizes)) if opened.named else None
        total = sum(opened.sizes.values())
        with show_progress(total, hidden=as_json) as advance:
            for name, size in opened.sizes.items():
                x = opened.read(name)
                with naming(f"array {name!r}" if opened.named else source):
                    start = time.perf_counter()
                    encoded = encode_array(
                        x, bound, codec=codec, effort=effort, dither=dither, threads=threads
                    )
                    seconds = time.perf_counter() - start
                    # What is verified and counted is what is stored: the bytes, header and all.
                    blob = Blob.frombytes(encoded.tobytes())
                row = {
                    "name": name,
                    "dtype": NAMES[blob.recipe.dtype][0],
                    "shape": list(blob.shape),
                    "codec": blob.codec,
                    "raw_bytes": blob.raw_nbytes,
                    "encoded_bytes": blob.nbytes,
                    "ratio": blob.ratio,
                    "seconds": seconds,
                    "gb_per_s": blob.raw_nbytes / seconds / 1e9,
                }
                if verify:
                    found = compare(x, decode(blob, threads=threads), bound)
                    if not found.holds:
                        complain(name, found, bound)
                    row["largest_error"] = found.largest_error
                    row["allowed"] = found.allowed
                    if leaves_nothing(x, found, bound):
                        notes.append(
                            f"elbowroom: note: {f'array {name!r}' if opened.named else source} "
                            f"varies by no more than the bound of {bound.value:g}, so that nothing "
                            "of it is left: a smaller one keeps more"
                        )
                rows.append(row)
                if archive:
                    archive.add(blob)
                else:
                    blob.write(file)
                advance(size)
        if archive:
            archive.finish()
    if as_json:
        facts = {"file": str(target), "bytes": target.stat().st_size, "bound": str(bound)}
        typer.echo(json.dumps({**facts, "verified": verify, "arrays": rows}, indent=2))
    else:
        _print_rows(rows, target)
    for note in notes:
        typer.echo(note, err=True)


def leaves_nothing(x: Any, found: "Verdict", bound: "Bound") -> bool:
    """Whether an array varies, but by no more than an absolute bound lets its values move."""
    from elbowroom.bench.verification import extent
    from elbowroom.codec.bound import Mode

    exact = not found.allowed
    if bound.mode != Mode.ABSOLUTE or bound.keep_sign or exact:
        return False
    low, high = extent(x)
    return 0 < high - low <= bound.value


def choose_bound(
    absolute: float | None,
    range_: float | None,
    pointwise: float | None,
    lossless: bool,
    keep_sign: bool,
) -> "Bound":
    """Return the one bound that the options describe."""
    from elbowroom import Bound

    given = [
        word
        for word, value in {
            "--absolute": absolute,
            "--range": range_,
            "--pointwise": pointwise,
            "--lossless": lossless or None,
        }.items()
        if value is not None
    ]
    if len(given) != 1:
        raise InvalidArgument(
            "say how far values may move with one of --absolute E, --range R, --pointwise R and "
            f"--lossless, got {' and '.join(given) or 'none'}"
        )
    if absolute is not None:
        return Bound.absolute(absolute, keep_sign=keep_sign)
    if range_ is not None and range_ >= 1:
        raise InvalidArgument(
            f"--range {range_:g} lets values move by the whole range of the array, so that nothing "
            "of it would be left: pass a share below 1, such as 1e-3"
        )
    if range_ is not None:
        return Bound.range_relative(range_, keep_sign=keep_sign)
    return Bound.lossless() if pointwise is None else Bound.pointwise_relative(pointwise)


def complain(name: str, found: "Verdict", bound: "Bound") -> None:
    """End with the news that a bound was broken."""
    typer.echo(
        f"elbowroom: array {name!r} does not come back within {bound}: the largest error is "
        f"{found.largest_error:g} where {found.allowed:g} is allowed; nothing was written, "
        "please report this",
        err=True,
    )
    raise typer.Exit(1)


@contextmanager
def show_progress(total_bytes: int, *, hidden: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on the terminal while there is much to do; yield what moves it on."""
    if hidden or total_bytes < PROGRESS_FROM_BYTES or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total_bytes)
        yield lambda nbytes: progress.advance(task, nbytes)


def _print_rows(rows: list[dict[str, Any]], target: Path) -> None:
    from elbowroom.cli.tables import print_table

    headings = ["name", "dtype", "shape", "codec", "raw bytes", "encoded", "ratio"]
    headings += ["max error / bound", "seconds", "GB/s"]
    lines = [
        [
            row["name"] or "-",
            row["dtype"],
            "x".join(map(str, row["shape"])) or "scalar",
            row["codec"],
            f"{row['raw_bytes']:,}",
            f"{row['encoded_bytes']:,}",
            f"{row['ratio']:.2f}",
            _error_text(row),
            f"{row['seconds']:.3f}",
            f"{row['gb_per_s']:.2f}",
        ]
        for row in rows
    ]
    raw = sum(row["raw_bytes"] for row in rows)
    size = target.stat().st_size
    remark = f"{target}: {counted(size, 'byte')} for {raw:,}, {compared(size, raw)}"
    print_table(headings, lines, remarks=[remark], text_columns=(0, 1, 2, 3))


def _error_text(row: dict[str, Any]) -> str:
    if "allowed" not in row:
        return "not verified"
    if not row["largest_error"]:
        return "exact"
    return f"{row['largest_error']:.3g} / {row['allowed']:.3g}"
