"""The verb `demo`: one network trained twice, plainly and in a third of the memory."""

import json
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from elbowroom.cli.contender import Settings
    from elbowroom.report.model import Attempt, Run
    from elbowroom.report.writing import Writer

FOLDER = Path("elbowroom-demo")
STEPS, BATCH, SECONDS = 30, 8, 110.0
TOLERANCE = 0.1
LARGER = 2  # times the batch, in the same memory
HEADROOM = 1.15  # of the limit over what plain training took at the usual batch
LIMITED_STEPS = 2

TITLE = "Extreme rain, trained plainly and in less memory"
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
    seed: Annotated[int, typer.Option(min=0, help="Of weights and batches, for both.")] = 0,
    learning_rate: Annotated[float | None, typer.Option(help="Instead of the usual.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Narrow maps, a small network: does it run?")
    ] = False,
    limited: Annotated[
        bool,
        typer.Option("--limited/--no-limited", help="Also train a larger batch under a limit."),
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
    from elbowroom.cli.contender import Settings

    shared: dict[str, Any] = {"steps": steps, "batch": batch, "seed": seed}
    shared |= {"learning_rate": learning_rate, "score_every": max(1, -(-steps // 4))}
    if quick:
        shared |= {"rows": 32}
    both = [
        Settings(name="plain", label="plain", **shared),
        Settings(name="elbowroom", label="elbowroom", tolerance=TOLERANCE, **shared),
    ]
    _contest(out, both, seconds=seconds, limited=limited, as_json=as_json)


def _contest(
    out: Path, both: "list[Settings]", *, seconds: float, limited: bool, as_json: bool
) -> None:
    from elbowroom.bench.machine import describe
    from elbowroom.cli.contest import check, compete
    from elbowroom.cli.progress import show_progress
    from elbowroom.report.reading import read_run
    from elbowroom.report.writing import Writer

    begin = time.monotonic()
    _prepare(out)
    header = {
        "title": TITLE,
        "about": ABOUT,
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
        notes = [f"{c.label}: {c.note}" for c in run.contenders if c.state == "failed"]
        done = min(len(contender.steps) for contender in run.contenders)
        if notes:
            writer.end("failed", "; ".join(notes))
        else:
            if limited:
                _try_limit(out, both, run, writer, hidden=as_json)
            late = f"time was up after {done} of {both[0].steps} steps"
            writer.end("finished", late if done < both[0].steps else "")
    run = read_run(out)
    page = _write_page(run, out)
    if as_json:
        facts = {"seconds": time.monotonic() - begin, "report": str(page or ""), **_summary(run)}
        typer.echo(json.dumps(facts, indent=2, allow_nan=False))
    else:
        _print(run, page, time.monotonic() - begin)
    if run.state == "failed":
        typer.echo(f"elbowroom: {run.note}", err=True)
    if run.state == "failed" or page is None:
        raise typer.Exit(1)


def _prepare(out: Path) -> None:
    """Clear what an earlier demo has left, and nothing else."""
    import shutil

    from elbowroom.errors import InvalidArgument

    if out.exists() and not out.is_dir():
        raise InvalidArgument(f"{out} is a file, and a folder is needed: name another with --out")
    if out.is_dir() and any(out.iterdir()) and not (out / "run.jsonl").is_file():
        raise InvalidArgument(
            f"the folder {out} holds something else than a run: name another with --out"
        )
    for path in out.glob("*.jsonl"):
        path.unlink()
    shutil.rmtree(out / "limited", ignore_errors=True)


@contextmanager
def _reported(out: Path, writer: "Writer", as_json: bool) -> Iterator[None]:
    """Whatever happens, what was measured until then can be seen."""
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
            _print(run, page, None)
        raise typer.Exit(130 if ended else 1) from None


def _write_page(run: "Run", out: Path) -> Path | None:
    from elbowroom.cli.report import write_page

    try:
        return write_page(run, out / "report.html")
    except OSError as error:
        typer.echo(
            f"elbowroom: the report could not be written ({error}): make room, then "
            f"'elbowroom report {out}'",
            err=True,
        )
        return None


def _try_limit(
    out: Path, both: "list[Settings]", run: "Run", writer: "Writer", *, hidden: bool
) -> None:
    """Train a batch that is too large for plain training under a real limit of memory."""
    from elbowroom.cli.limits import try_limits

    plain = run.find("plain")
    if plain is None or plain.memory is None or not sys.platform.startswith("linux"):
        return
    limit = int(plain.memory.above_bytes * HEADROOM)
    if not hidden:
        typer.echo(
            f"now under a limit of {limit / 1e6:.0f} MB above the start, {HEADROOM:g} times what "
            f"plain training took: batches of {both[0].batch} and {LARGER * both[0].batch}",
            err=True,
        )
    for attempt in try_limits(out / "limited", both, limit, larger=LARGER, steps=LIMITED_STEPS):
        writer.append("attempt", **_fields(attempt))


def _fields(attempt: "Attempt") -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(attempt)


def _summary(run: "Run") -> dict[str, Any]:
    """The figures of the table, for programs."""
    contenders = {
        c.name: {
            "state": c.state,
            "note": c.note,
            "steps": len(c.steps),
            "peak_bytes": c.memory.above_bytes if c.memory else None,
            "baseline_bytes": c.memory.baseline_bytes if c.memory else None,
            "saved_bytes": c.saved_bytes,
            "kept_bytes": c.kept_bytes,
            "step_s": c.step_s,
            "loss": c.steps[-1].loss if c.steps else None,
            "score": {
                "name": c.score.name,
                "value": c.score.value,
                **{"baselines": dict(c.score.baselines)},
            }
            if c.score
            else None,
            "gradient_error": c.gradient_error,
            "measured_gradient_error": c.readings[-1].measured if c.readings else None,
        }
        for c in run.contenders
    }
    attempts = [_fields(attempt) for attempt in run.attempts]
    return {"state": run.state, "note": run.note, "contenders": contenders, "attempts": attempts}


def _print(run: "Run", page: Path | None, seconds: float | None) -> None:
    from elbowroom.cli.tables import make_console, print_table
    from elbowroom.report.wording import say_bytes, say_number, say_seconds

    contenders = run.contenders
    name = next((c.score.name for c in contenders if c.score), "score")
    lines = [
        [
            "peak memory",
            *(say_bytes(c.memory.above_bytes if c.memory else None) for c in contenders),
        ],
        ["saved bytes", *(say_bytes(c.kept_bytes) for c in contenders)],
        ["step time", *(say_seconds(c.step_s) for c in contenders)],
        ["loss", *(say_number(c.steps[-1].loss if c.steps else None, 4) for c in contenders)],
        [name, *(say_number(c.score.value if c.score else None, 4) for c in contenders)],
        ["gradient error", *(say_number(c.gradient_error) for c in contenders)],
        [
            "  as measured",
            *(say_number(c.readings[-1].measured if c.readings else None) for c in contenders),
        ],
        ["steps", *(str(len(c.steps)) for c in contenders)],
    ]
    console = make_console()
    print_table(["", *(c.label for c in contenders)], lines)
    console.print()
    baselines = next((c.score.baselines for c in contenders if c.score), {})
    for simple, value in baselines.items():
        console.print(f"For comparison, {simple} reaches {name} {value:.4g}.")
    console.print(
        "Peak memory is the process's high-water mark above where it stood before the first step; "
        "gradient error is a share of the gradient's own variance."
    )
    for attempt in run.attempts:
        console.print(
            f"Limit {say_bytes(attempt.limit_bytes)}, {attempt.label}: "
            f"{'finished' if attempt.finished else 'did not finish'}, {attempt.said}"
        )
    if run.note and run.state == "finished":
        console.print(f"Note: {run.note}.")
    if page is not None:
        took = f" ({seconds:.0f} s)" if seconds is not None else ""
        console.print(f"Report: {page}{took}")
