"""The verb `demo`: one network trained twice, plainly and in a third of the memory."""

import json
import math
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from elbowroom.cli.contender import Settings
    from elbowroom.report.model import Run
    from elbowroom.report.writing import Writer

FOLDER = Path("elbowroom-demo")
STEPS, BATCH, SECONDS = 30, 8, 110.0
TOLERANCE = 0.1
LARGER = 2  # times the batch, in the same memory
HEADROOM = 1.15  # of the limit over what plain training took at the usual batch
LIMITED_STEPS = 2
BROKEN = ("failed", "interrupted")  # also when somebody has interrupted one training alone

TITLE = "Extreme rain, trained plainly and in less memory"
NAMES = ("plain", "elbowroom")
MOST_SEED = 2**32 - 1
ABOUT = (
    "A U-Net learns from CESM Large Ensemble fields which cells of the globe have extreme rain. "
    "Both trainings have the same seed, batches and number of steps, one thread and a process of "
    "their own; one keeps for backward what autograd saves, the other what Elbowroom makes of it."
)


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the run and its report.")
    ] = FOLDER,
    steps: Annotated[int, typer.Option(min=1, help="Of each training.")] = STEPS,
    batch: Annotated[int, typer.Option(min=1, help="Maps a step.")] = BATCH,
    seconds: Annotated[
        float, typer.Option(min=1, help="Both stop at the same step when these are over.")
    ] = SECONDS,
    seed: Annotated[
        int, typer.Option(min=0, max=MOST_SEED, help="Of weights and batches, for both.")
    ] = 0,
    learning_rate: Annotated[float | None, typer.Option(help="Instead of the usual.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Narrow maps, a small network: does it run?")
    ] = False,
    limited: Annotated[
        bool,
        typer.Option(
            "--limited/--no-limited",
            help="Also train a larger batch under a limit; not with --quick.",
        ),
    ] = True,
    codec: Annotated[
        bool, typer.Option("--codec", help="The codec alone, on fields and activations.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Train a climate network plainly and with Elbowroom, side by side, and report."""
    if codec:
        from elbowroom.cli.demo_codec import show_codec

        show_codec(quick=quick, as_json=as_json)
        return
    _check(seconds, learning_rate)
    from elbowroom.cli.contender import Settings

    shared: dict[str, Any] = {"steps": steps, "batch": batch, "seed": seed}
    shared |= {"learning_rate": learning_rate, "score_every": max(1, -(-steps // 4))}
    if quick:
        shared |= {"rows": 32}
    both = [
        Settings(name=name, label=name, tolerance=tolerance, **shared)
        for name, tolerance in zip(NAMES, (None, TOLERANCE), strict=True)
    ]
    from elbowroom.folders import held

    with held(out, "demo"):
        # What --quick trains takes less memory than the allocator's own habits: a limit on it
        # would tell of these.
        _contest(out, both, seconds=seconds, limited=limited and not quick, as_json=as_json)


def _check(seconds: float, learning_rate: float | None) -> None:
    """Refuse what typer lets through, before anything is started."""
    from elbowroom.errors import InvalidArgument

    if math.isnan(seconds):
        raise InvalidArgument("--seconds must be a number from 1 on, got nan: try 110")
    if learning_rate is not None and not 0 < learning_rate < math.inf:
        raise InvalidArgument(
            f"--learning-rate must be a positive number, got {learning_rate}: leave it out for the "
            "usual one"
        )


def _contest(
    out: Path, both: "list[Settings]", *, seconds: float, limited: bool, as_json: bool
) -> None:
    from elbowroom.bench.machine import describe
    from elbowroom.cli.contest import check, compete
    from elbowroom.cli.demo_folder import clear
    from elbowroom.cli.demo_table import TERMS, print_run, summarize
    from elbowroom.cli.progress import show_progress
    from elbowroom.report.reading import read_run
    from elbowroom.report.writing import Writer

    begin = time.monotonic()
    clear(out, TITLE, NAMES)
    header = {
        "title": TITLE,
        "about": f"{ABOUT} {TERMS}",
        "command": f"elbowroom {shlex.join(sys.argv[1:])}"
        if sys.argv[1:2] == ["demo"]
        else "elbowroom demo",
        "machine": {key: str(value) for key, value in describe().items()},
    }
    with Writer(out, "run", "run", header) as writer, _reported(out, writer, as_json):
        with show_progress([s.label for s in both], both[0].steps, hidden=as_json) as look:
            endings = compete(out, both, seconds=seconds, look=look)
        run = read_run(out)
        check(endings, run)
        notes = [f"{c.label}: {c.note}" for c in run.contenders if c.state in BROKEN]
        done = min(len(contender.steps) for contender in run.contenders)
        if notes:
            writer.end("failed", "; ".join(notes))
        else:
            is_late = done < both[0].steps
            told = [f"time was up after {done} of {both[0].steps} steps"] if is_late else []
            if limited:
                told += _try_limit(out, both, run, writer, hidden=as_json)
            writer.end("stopped" if is_late else "finished", "; ".join(told))
    run = read_run(out)
    page = _write_page(run, out)
    if as_json:
        facts = {"seconds": time.monotonic() - begin, "report": str(page or ""), **summarize(run)}
        typer.echo(json.dumps(facts, indent=2, allow_nan=False))
    else:
        print_run(run, page, time.monotonic() - begin)
    if run.state == "failed":
        typer.echo(f"elbowroom: {run.note}", err=True)
    if run.state == "failed" or page is None:
        raise typer.Exit(1)


@contextmanager
def _reported(out: Path, writer: "Writer", as_json: bool) -> Iterator[None]:
    """Whatever happens, what was measured until then can be seen."""
    from elbowroom.cli.demo_table import print_run
    from elbowroom.errors import ElbowroomError
    from elbowroom.report.reading import read_run

    try:
        yield
    except (KeyboardInterrupt, SystemExit, ElbowroomError, OSError) as error:
        ended = isinstance(error, KeyboardInterrupt | SystemExit)
        said = "interrupted" if ended else str(error)
        try:
            writer.end("interrupted" if ended else "failed", said)
        except OSError:
            pass  # the disk is full, perhaps: the page still tells what is there
        run = read_run(out)
        page = _write_page(run, out)
        where = f"what was measured until then: {page}" if page else "there is no report"
        typer.echo(f"elbowroom: {said}; {where}", err=True)
        if not as_json and any(contender.steps for contender in run.contenders):
            print_run(run, page, None)
        raise typer.Exit(_code_of(error)) from None


def _code_of(error: BaseException) -> int:
    """As shells have it: 130 after Ctrl-C, and what another signal's handler says, such as 143."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _write_page(run: "Run", out: Path) -> Path | None:
    from elbowroom.cli.report import write_page

    try:
        return write_page(run, out / "report.html", is_named=False)
    except OSError as error:
        typer.echo(
            f"elbowroom: the report could not be written ({error}): make room, then "
            f"'elbowroom report {out}'",
            err=True,
        )
        return None


def _try_limit(
    out: Path, both: "list[Settings]", run: "Run", writer: "Writer", *, hidden: bool
) -> list[str]:
    """Train a batch that is too large for plain training under a real limit of memory.

    Returns what has to be said about it.
    """
    from elbowroom.cli.demo_folder import LIMITED
    from elbowroom.cli.limits import try_limits

    plain = run.find("plain")
    if plain is None or plain.memory is None or not sys.platform.startswith("linux"):
        return []
    limit = int(plain.memory.above_bytes * HEADROOM)
    if not hidden:
        typer.echo(
            f"now under a limit of {limit / 1e6:.0f} MB above the start, {HEADROOM:g} times what "
            f"plain training took: batches of {both[0].batch} and {LARGER * both[0].batch}",
            err=True,
        )
    trial = try_limits(out / LIMITED, both, limit, larger=LARGER, steps=LIMITED_STEPS)
    for attempt in trial.attempts:
        writer.append("attempt", **asdict(attempt))
    return [trial.note] if trial.note else []
