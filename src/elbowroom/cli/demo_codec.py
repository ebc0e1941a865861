"""What `demo --codec` shows: the codec alone, on real data, with every promise checked."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import typer

from elbowroom.cli.wording import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from elbowroom.codec.bound import Bound

SHARES = (1e-1, 1e-2, 1e-3, 1e-4)
ACTIVATION_SHARE = 1e-2
ROUNDS = 5
STEPS = 150
CODECS: dict[Literal["block", "dense"], Literal["ratio", "speed"]] = {
    "block": "speed",
    "dense": "ratio",
}

Fields = dict[str, "NDArray[np.float32]"]
Row = dict[str, Any]
Tell = Callable[[str], None]


def show_codec(*, quick: bool, as_json: bool) -> None:
    """Compress climate fields and the activations of a network, and check every bound.

    `quick` takes one field and a few training steps.
    """
    from elbowroom.bench.machine import describe
    from elbowroom.bench.speed import one_torch_thread
    from elbowroom.bench.tables import plain
    from elbowroom.science.climate import SAMPLE_BOUND, sample

    start = time.perf_counter()
    fields = sample()
    shown = dict(list(fields.items())[:1]) if quick else fields
    shares = SHARES[1:3] if quick else SHARES
    steps = 3 if quick else STEPS
    total = len(shown) * len(shares) + steps + 6
    # One thread throughout: the network is too small to gain from more.
    with one_torch_thread(), _show_progress(total, hidden=as_json) as tell:
        rows = measure_fields(shown, shares, rounds=1 if quick else ROUNDS, tell=tell)
        training, activations = measure_activations(fields, steps=steps, tell=tell)
    broken = [row for row in [*rows, *activations] if not row["holds"]]
    kept = sum(row["raw_bytes"] for row in activations)
    held = sum(row["encoded_bytes"] for row in activations)
    facts = {
        "machine": describe(),
        "sample": {"bound": str(SAMPLE_BOUND), "shapes": {k: v.shape for k, v in fields.items()}},
        "fields": rows,
        "training": training,
        "activations": activations,
        "summary": {
            "checked": len(rows) + len(activations),
            "broken": len(broken),
            "activation_bytes": kept,
            "encoded_activation_bytes": held,
            "seconds": time.perf_counter() - start,
        },
    }
    if as_json:
        typer.echo(json.dumps(plain(facts), indent=2, allow_nan=False))
    else:
        _print_report(facts)
    if broken:
        names = ", ".join(sorted({row["name"] for row in broken}))
        typer.echo(f"elbowroom: a promise was broken ({names}); please report this", err=True)
        raise typer.Exit(1)


def measure_fields(
    fields: Fields, shares: tuple[float, ...], *, rounds: int, tell: Tell
) -> list[Row]:
    """Encode every field at every bound with both codecs: size, error and speed on one thread."""
    from elbowroom.codec.bound import Bound

    rows: list[Row] = []
    for name, x in fields.items():
        for share in shares:
            tell(f"{name} at {share:g} of its range")
            for codec in CODECS:
                row = _measure(x, Bound.range_relative(share), codec, rounds)
                rows.append({"name": name, "share": share, **row})
    return rows


def measure_activations(fields: Fields, *, steps: int, tell: Tell) -> tuple[Row, list[Row]]:
    """Train the small network, and encode what a training step of it keeps."""
    from elbowroom.codec.bound import Bound
    from elbowroom.science.climate import rain

    task = rain.make_task(fields)
    start = time.perf_counter()
    network = rain.train(task, steps=steps, tell=lambda: tell("training"))
    facts = {"steps": steps, "seconds": time.perf_counter() - start}
    facts |= {"accuracy": rain.score(network, task), "repeating_the_day_before": task.repeated}
    rows: list[Row] = []
    for name, x in rain.kept_activations(network, task.inputs[-1:]).items():
        tell(f"activation {name}")
        after_relu = name.startswith("relu")
        bound = Bound.range_relative(ACTIVATION_SHARE, keep_sign=after_relu)
        row = {"name": name, "share": ACTIVATION_SHARE, "keep_sign": after_relu}
        row |= _measure(x, bound, "dense", 1, mask=after_relu)
        rows.append(row)
    return facts, rows


def _measure(
    x: Any, bound: "Bound", codec: Literal["block", "dense"], rounds: int, *, mask: bool = False
) -> Row:
    """Encode, decode and compare one array; `mask` asks that the same values are above zero."""
    from elbowroom.bench.race import Contender, race
    from elbowroom.bench.verification import verify
    from elbowroom.codec.blob import Blob
    from elbowroom.codec.decode import decode
    from elbowroom.codec.encode import encode

    effort = CODECS[codec]
    # What is measured is what would be stored: the bytes, header and all.
    blob = Blob.frombytes(encode(x, bound, codec=codec, effort=effort, threads=1).tobytes())
    y = decode(blob, threads=1)
    found = verify(x, y, bound)
    row = {
        "codec": blob.codec,
        "asked_codec": codec,
        "raw_bytes": blob.raw_nbytes,
        "encoded_bytes": blob.nbytes,
        "ratio": blob.ratio,
        "error_over_bound": found.share,
        "holds": found.holds,
    }
    if mask:
        row["mask_survives"] = bool(((x > 0) == (y > 0)).all())
        row["holds"] = row["holds"] and row["mask_survives"]

    def encode_again() -> Any:
        return encode(x, bound, codec=codec, effort=effort, threads=1)

    size = blob.raw_nbytes
    times = race(
        [
            Contender(name="encode", call=encode_again, nbytes=size),
            Contender(name="decode", call=lambda: decode(blob, out=y, threads=1), nbytes=size),
        ],
        rounds=rounds,
    )
    return row | {f"{name}_gb_per_s": best.gb_per_s for name, best in times.items()}


def _print_report(facts: Row) -> None:
    from elbowroom.cli.tables import make_console, print_table

    console = make_console()
    speeds = [f"{codec}\n{what}" for codec in CODECS for what in ("ratio", "enc GB/s", "dec GB/s")]
    print_table(
        ["field", "bound", "error\n/ bound", *speeds],
        _field_lines(facts["fields"]),
        title="Climate fields: bound as a share of the range, largest error, one thread",
        remarks=[f"The fields themselves were stored within {facts['sample']['bound']}."],
    )
    training, summary = facts["training"], facts["summary"]
    console.print()
    print_table(
        ["activation", "bound", "error\n/ bound", "ReLU mask", "bytes", "encoded", "ratio"],
        [_activation_line(row) for row in facts["activations"]],
        title="What a training step of a small network keeps, by dense",
        remarks=[
            f"The network learnt for {counted(training['steps'], 'step')} to tell wet from dry. "
            f"It is right on {training['accuracy']:.1%} of a day it has not seen; repeating the "
            f"day before is right on {training['repeating_the_day_before']:.1%}."
        ],
    )
    ratio = summary["activation_bytes"] / summary["encoded_activation_bytes"]
    console.print()
    console.print(
        f"{counted(summary['checked'], 'encoding')} compared with their originals, "
        f"{counted(summary['broken'], 'promise')} broken; the activations take {ratio:.1f} times "
        f"less at {ACTIVATION_SHARE:g} of their range. What that does to training is not "
        f"measured here. ({summary['seconds']:.0f} s)"
    )
    console.print("Next, on arrays of your own:")
    console.print("  elbowroom encode x.npy x.er --range 1e-3")
    console.print("  elbowroom bench codec x.npy")
    console.print("Read on: docs/codec.md to use it, docs/guarantees.md for why the bounds hold.")


def _field_lines(rows: list[Row]) -> list[list[str]]:
    cells: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        cells.setdefault((row["name"], row["share"]), []).append(row)
    return [
        [
            name,
            f"{share:g}",
            f"{max(row['error_over_bound'] for row in both):.4f}",
            *(
                text
                for row in both
                for text in (
                    f"{row['ratio']:.1f}",
                    f"{row['encode_gb_per_s']:.2f}",
                    f"{row['decode_gb_per_s']:.2f}",
                )
            ),
        ]
        for (name, share), both in cells.items()
    ]


def _activation_line(row: Row) -> list[str]:
    mask = {True: "exact", False: "BROKEN", None: "-"}[row.get("mask_survives")]
    sizes = [f"{row['raw_bytes']:,}", f"{row['encoded_bytes']:,}", f"{row['ratio']:.1f}"]
    return [row["name"], f"{row['share']:g}", f"{row['error_over_bound']:.4f}", mask, *sizes]


@contextmanager
def _show_progress(total: int, *, hidden: bool) -> Iterator[Tell]:
    """Show a bar and the present step on the terminal; yield what names the next step."""
    if hidden or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda text: progress.update(task, advance=1, description=text)
