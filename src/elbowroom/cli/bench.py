"""The verb `bench`: measurements on this machine, on your arrays or on the activation set."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elbowroom.errors import InvalidArgument

if TYPE_CHECKING:
    from elbowroom.bench.activations import Tensor

app = typer.Typer(no_args_is_help=True, help="Measure on this machine.")

BOUNDS = "1e-1,1e-2,1e-3"
CACHE = Path(".cache/bench/peers.json")


@app.callback()
def _group() -> None:
    """Measure on this machine."""


@app.command()
def codec(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", help="Arrays to measure on; without any, the activation set."
        ),
    ] = None,
    bounds: Annotated[str, typer.Option(help="Shares of the range, separated by commas.")] = BOUNDS,
    large: Annotated[
        bool, typer.Option("--large", help="Time the large arrays of the activation set too.")
    ] = False,
    peers: Annotated[
        bool, typer.Option(help="Measure SZ3, zfp, pcodec, zstd and blosc2 as well.")
    ] = True,
    rounds: Annotated[
        int, typer.Option(min=1, help="Repeats of every timing; the best counts.")
    ] = 7,
    activations: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the activation set is.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show size, error and speed of the codec beside its peers'."""
    from elbowroom import _native
    from elbowroom.bench import activations as activation_set
    from elbowroom.bench.machine import describe
    from elbowroom.bench.peers import installed_peers
    from elbowroom.bench.ratio import SizeCache, measure_ratios, ratio_record, ratio_tables
    from elbowroom.bench.speed import measure_speed
    from elbowroom.bench.speed_tables import speed_record, speed_tables
    from elbowroom.cli.tables import print_table

    shares = parse_bounds(bounds)
    rivals, missing = installed_peers() if peers else ([], [])
    folder = activations or activation_set.FOLDER
    if files:
        tensors = [tensor for file in files for tensor in _read_file(file)]
        timed, cache = tensors, SizeCache(None)
    else:
        tensors = activation_set.list_activations(folder)
        # One of every network is enough for speed, which hardly depends on the tensor.
        timed = list({tensor.name.split("_")[0]: tensor for tensor in tensors}.values())
        cache = SizeCache(CACHE)
    if large:
        timed += activation_set.list_activations(folder, large=True)
    with _telling(quiet=as_json) as tell:
        cells = measure_ratios(tensors, shares, peers=rivals, cache=cache, tell=tell)
        speeds = []
        isa = _native.isa()
        for tensor in timed:
            x = tensor.read()
            for share in shares:
                tell(f"timing {tensor.name} at {share:g} of its range")
                speeds.append(
                    measure_speed(tensor.name, x, share, isas=[isa], peers=rivals, rounds=rounds)
                )
    if as_json:
        record = {
            "machine": describe(),
            "missing_peers": missing,
            "ratio": ratio_record(cells),
            "speed": speed_record(speeds),
        }
        typer.echo(json.dumps(record, indent=2, allow_nan=False))
    else:
        for table in [*ratio_tables(cells), *speed_tables(speeds, [isa])]:
            print_table(table.headings, table.rows, title=table.title, remarks=table.remarks)
            typer.echo()
        if missing:
            typer.echo(f"Not installed, so not measured: {', '.join(missing)}.")
    if not all(cell.holds for cell in cells):
        typer.echo("elbowroom: a bound was broken, see the table; please report this", err=True)
        raise typer.Exit(1)


def parse_bounds(words: str) -> list[float]:
    """Turn 1e-1,1e-2 into numbers between 0 and 1."""
    try:
        shares = [float(word) for word in words.split(",")]
    except ValueError:
        shares = [-1.0]
    if not all(0 < share < 1 for share in shares):
        raise InvalidArgument(
            f"--bounds must be shares of the range such as {BOUNDS}, got {words!r}"
        )
    return shares


def _read_file(path: Path) -> "list[Tensor]":
    """Return the float arrays of a file; they are read again for every use."""
    from elbowroom.bench.activations import Tensor
    from elbowroom.cli.sources import open_source

    found: list[Tensor] = []
    with open_source(path) as source:
        for name in source.sizes:
            if _is_float(source.read(name)):
                label = f"{path.stem}/{name}" if source.named else path.stem
                read = _Reader(path, name)
                found.append(Tensor(name=label, kind="given", read=read))
    if not found:
        raise InvalidArgument(
            f"{path} holds no float array of at least one item to measure on: pass another"
        )
    return found


class _Reader:
    """Reads one array of a file, so that not all of them stay in memory."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name

    def __call__(self) -> Any:
        from elbowroom.cli.sources import open_source

        with open_source(self._path) as source:
            return source.read(self._name)


def _is_float(x: Any) -> bool:
    import torch

    floating = x.is_floating_point() if isinstance(x, torch.Tensor) else x.dtype.kind == "f"
    return bool(floating) and 0 not in x.shape


@contextmanager
def _telling(*, quiet: bool) -> Iterator[Any]:
    """Yield what shows the present step on a terminal, and nothing elsewhere."""
    import sys

    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update
