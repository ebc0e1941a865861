"""What the demo prints when it is over, for people and for programs."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from elbowroom.cli.tables import make_console, print_table
from elbowroom.report.model import Contender, Run
from elbowroom.report.wording import say_bytes, say_excess, say_number, say_seconds

# Steps from which on a score says something of how well was learnt.
_LEARNT = 200

# Of the score and its baseline, on the page as well.
TERMS = (
    "IoU: of the cells that the network or the truth calls extreme, the share that both do; 1 is "
    "perfect, higher is better. Persistence repeats the rain of the day before."
)


def summarize(run: Run) -> dict[str, Any]:
    """The figures of the table, for programs."""
    contenders = {c.name: _describe(c) for c in run.contenders}
    attempts = [asdict(attempt) for attempt in run.attempts]
    return {"state": run.state, "note": run.note, "contenders": contenders, "attempts": attempts}


def _describe(contender: Contender) -> dict[str, Any]:
    memory, score = contender.memory, contender.score
    return {
        "state": contender.state,
        "note": contender.note,
        "steps": len(contender.steps),
        "peak_bytes": memory.above_bytes if memory else None,
        "baseline_bytes": memory.baseline_bytes if memory else None,
        "saved_bytes": contender.saved_bytes,
        "kept_bytes": contender.kept_bytes,
        "step_s": contender.step_s,
        "loss": contender.steps[-1].loss if contender.steps else None,
        "score": {"name": score.name, "value": score.value, "baselines": dict(score.baselines)}
        if score
        else None,
        "tolerance": contender.tolerance,
        "gradient_error": contender.gradient_error,
        "measured_gradient_error": contender.measured_error,
    }


def print_run(run: Run, page: Path | None, seconds: float | None) -> None:
    """Print the table, what its words mean, and where the report is."""
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
        ["  as measured", *(say_number(c.measured_error) for c in contenders)],
        ["  tolerance", *(say_number(c.tolerance) for c in contenders)],
        ["steps", *(str(len(c.steps)) for c in contenders)],
    ]
    console = make_console()
    print_table(["", *(c.label for c in contenders)], lines)
    console.print()
    baselines = next((c.score.baselines for c in contenders if c.score), {})
    for simple, value in baselines.items():
        console.print(f"For comparison, {simple} reaches {name} {value:.4g}.")
    if baselines:
        console.print(TERMS)
    if 0 < max((len(c.steps) for c in contenders), default=0) < _LEARNT:
        console.print(
            f"So early in training {name} differs by hundredths from seed to seed, either way: "
            "elbowroom study trains to the end, with several seeds."
        )
    console.print(
        "Peak memory is the process's high-water mark above where it stood before the first step; "
        "saved bytes are those held for backward in the last step; gradient error is a share of "
        "the gradient's own variance, predicted and measured on the same new batches."
    )
    for contender in contenders:
        if said := say_excess(contender):
            console.print(said)
    for attempt in run.attempts:
        console.print(
            f"Limit {say_bytes(attempt.limit_bytes)}, {attempt.label}: "
            f"{'finished' if attempt.finished else 'did not finish'}, {attempt.said}"
        )
    if run.note and run.state in ("finished", "stopped"):
        console.print(f"Note: {run.note}.")
    if page is not None:
        took = f" ({seconds:.0f} s)" if seconds is not None else ""
        console.print(f"Report: {page}{took}")
