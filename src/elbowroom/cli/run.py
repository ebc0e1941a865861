"""The verb `run`: a training script as it is, with its activations compressed."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from elbowroom.errors import BackendUnavailable, InvalidArgument
from elbowroom.sizes import parse_bytes

if TYPE_CHECKING:
    from elbowroom.integrations.companion import Orders

# What follows the script is the script's own.
SETTINGS = {"context_settings": {"allow_interspersed_args": False}}


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
    memory: Annotated[
        str | None, typer.Option(help="Budget of each process, such as 6GB.", show_default=False)
    ] = None,
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
    from elbowroom.integrations.companion import Companion, Orders
    from elbowroom.integrations.launch import Program

    if memory is not None:
        parse_bytes(memory)
    orders = Orders(
        tolerance=_checked_tolerance(tolerance),
        memory=memory,
        rule=rule,
        ledger=_checked_ledger(ledger),
        is_quiet=quiet,
        is_json=as_json,
        script=script,
    )
    words = words or []
    if script == "torchrun" and not module and not Path(script).exists():
        _torchrun(orders, words)
    program = Program.of_module(script) if module else Program.of_script(script)
    companion = Companion(orders)
    if companion.rank == 0 and ledger is not None:
        # An old one would be taken for that of a run that fails to write its own.
        ledger.unlink(missing_ok=True)
    companion.start()
    try:
        program.run(words)
    except SystemExit as end:
        companion.has_failed = end.code not in {None, 0}
        raise
    except BaseException:
        companion.has_failed = True
        raise


def _torchrun(orders: "Orders", words: list[str]) -> NoReturn:
    """Have torchrun start this verb in every process, in front of the script."""
    try:
        from torch.distributed import run as launcher
    except ImportError as error:
        raise BackendUnavailable(f"torchrun needs a torch with distributed: {error}") from error
    launch = launcher.parse_args(words)
    if launch.no_python:
        raise InvalidArgument(
            "--no-python leaves no script to run: write 'torchrun --no-python ... elbowroom run "
            "script.py'"
        )
    options = ["run", f"--tolerance={orders.tolerance}", f"--rule={orders.rule}"]
    options += [] if orders.memory is None else [f"--memory={orders.memory}"]
    options += [] if orders.ledger is None else [f"--ledger={orders.ledger}"]
    options += ["--quiet"] * orders.is_quiet + ["--json"] * orders.is_json + ["-m"] * launch.module
    launch.training_script_args = [*options, launch.training_script, *launch.training_script_args]
    launch.training_script, launch.module = "elbowroom", True
    launcher.run(launch)
    sys.exit(0)


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
