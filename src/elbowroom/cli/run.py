"""The verb `run`: a training script as it is, with its activations compressed."""

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elbowroom.errors import InvalidArgument
from elbowroom.sizes import parse_bytes

if TYPE_CHECKING:
    from elbowroom.integrations.launch import Program

# What follows the script is the script's own.
SETTINGS = {"context_settings": {"allow_interspersed_args": False}}

EXIT_ABOVE_BUDGET = 3
"""The script has ended well, and a budget that was asked for was not kept to."""


def run(
    script: Annotated[
        str,
        typer.Argument(help="A Python script, a module after -m, or torchrun.", show_default=False),
    ],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="What the script is given.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Share of the gradient's variance that errors may add; 0: exact.")
    ] = 0.1,
    exact: Annotated[
        list[str] | None,
        typer.Option(help="A module that is kept without errors; may be repeated."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Budget of each process, such as 6GB.", show_default=False)
    ] = None,
    overhead: Annotated[
        str, typer.Option(help="Share that a step may take more than plain; none: as it takes.")
    ] = "0.25",
    rule: Annotated[
        Literal["variance", "comet", "certified"], typer.Option(help="What decides the bounds.")
    ] = "variance",
    ledger: Annotated[
        Path | None, typer.Option(help="Write the ledger here, as JSON.", show_default=False)
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="End with one line of JSON on standard error, and no words."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing.")] = False,
    module: Annotated[
        bool, typer.Option("-m", help="What follows is a module, as in python -m.")
    ] = False,
) -> None:
    """Run a training script, unchanged, in less memory."""
    from elbowroom.integrations.companion import Companion
    from elbowroom.integrations.family import Family
    from elbowroom.integrations.orders import Orders

    if memory is not None:
        parse_bytes(memory)
    orders = Orders(
        tolerance=_checked_tolerance(tolerance),
        exact=tuple(exact or ()),
        memory=memory,
        overhead=_checked_overhead(overhead),
        rule=rule,
        ledger=_checked_ledger(ledger),
        is_quiet=quiet,
        is_json=as_json,
        script=script,
    )
    words = words or []
    program = _program(script, module)
    companion = Companion(Family.begin(orders))
    if companion.rank == 0 and ledger is not None:
        # An old one would be taken for that of a run that fails to write its own.
        ledger.unlink(missing_ok=True)
    companion.start()
    try:
        program.run(words)
    except SystemExit as end:
        companion.has_failed = end.code not in {None, 0}
        if memory is not None and not companion.has_failed:
            _await_threads()
            if companion.has_breached():
                raise SystemExit(EXIT_ABOVE_BUDGET) from None
        raise
    except BaseException:
        companion.has_failed = True
        raise


def _program(script: str, is_module: bool) -> "Program":
    """What is to run: a script, a module, or a launcher whose processes are accompanied."""
    from elbowroom.integrations.launch import LAUNCHERS, Program

    if is_module:
        return Program.of_module(script)
    if script in LAUNCHERS and not Path(script).exists():
        return Program.of_launcher(script)
    return Program.of_script(script)


def _await_threads() -> None:
    """Threads that Python would wait for may still train."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()


def _checked_overhead(overhead: str) -> float | None:
    if overhead.lower() == "none":
        return None
    try:
        found = float(overhead)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise InvalidArgument(
            f"--overhead must be a share such as 0.25, or none, got {overhead}: 0.25 lets a step "
            "take a quarter more than plain"
        )
    return found


def _checked_tolerance(tolerance: float) -> float:
    if not 0 <= tolerance <= 1:
        raise InvalidArgument(
            f"--tolerance must be a share from 0 (exact) to 1, got {tolerance}: 0.1 is a good start"
        )
    return tolerance


def _checked_ledger(ledger: Path | None) -> str | None:
    """Absolute: the script may change the folder before the ledger is written."""
    if ledger is None:
        return None
    path = ledger.absolute()
    if not path.parent.is_dir() or (path.exists() and not path.is_file()):
        raise InvalidArgument(
            f"--ledger must name a file in a folder that is there, got {ledger}: make the folder"
        )
    if path.exists() and not _is_replaceable(path):
        raise InvalidArgument(
            f"--ledger must name a new file or an old ledger, and {ledger} is neither: choose "
            "another name"
        )
    return str(path)


def _is_replaceable(path: Path) -> bool:
    """Whether a file is empty or an old ledger: a script in its place is a slip."""
    try:
        held = json.loads(path.read_bytes() or b'{"modules": []}')
    except FileNotFoundError:
        return True  # another process of the launch has just removed it
    except (OSError, ValueError):
        return False
    return isinstance(held, dict) and "modules" in held
