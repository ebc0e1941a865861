"""Entry point of the `elbowroom` command."""

import io
import os
import signal
import sys
from importlib import import_module
from typing import Annotated

import typer
from typer.core import TyperGroup

from elbowroom import __version__
from elbowroom.errors import CorruptData, ElbowroomError, InvalidArgument

# Each verb is a module of this package that holds either a function of the same
# name (a command, for which typer may find SETTINGS there) or `app`, a typer.Typer
# (a group of commands). Help lists them in this order.
VERBS = (
    *("demo", "run", "report", "study", "checkpoint", "encode", "decode", "inspect", "bench"),
    *("data", "doctor"),
)

EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130


class _Verbs(TyperGroup):
    """Lists commands and groups of commands as VERBS does."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return sorted(super().list_commands(ctx), key=VERBS.index)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"elbowroom {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Room for training: compress what a run keeps, sends and stores, within a bound."""


def build(words: list[str]) -> typer.Typer:
    """Return the application with the verb that the words begin with, or with all verbs."""
    app = typer.Typer(
        name="elbowroom",
        cls=_Verbs,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    # One verb does not pay for the imports of the others.
    for verb in VERBS if not words or words[0] not in VERBS else words[:1]:
        module = import_module(f"elbowroom.cli.{verb}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=verb)
        else:
            app.command(verb, **getattr(module, "SETTINGS", {}))(getattr(module, verb))
    return app


def main(words: list[str] | None = None) -> None:
    """Run the command line; expected failures become one sentence and an exit code."""
    if words is None:
        words = sys.argv[1:]
        _open_streams()
        # A script that is run has signals to itself.
        for number in () if words[:1] == ["run"] else (signal.SIGTERM, signal.SIGHUP):
            # As an exception, so that files written aside are removed on the way out.
            signal.signal(number, lambda caught, _: sys.exit(128 + caught))
    try:
        build(words)(args=words, prog_name="elbowroom")
    except KeyboardInterrupt:
        _fail(KeyboardInterrupt("interrupted"), EXIT_INTERRUPTED)
    except SystemExit as end:
        # typer ends without a word where a verb has not seen to it.
        if isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt):
            _fail(KeyboardInterrupt("interrupted"), EXIT_INTERRUPTED)
        raise
    except CorruptData as error:
        _fail(CorruptData(f"{error}; fetch the file again, or make it anew"), EXIT_REFUSED)
    except ElbowroomError as error:
        _fail(error, EXIT_REFUSED)
    except FileNotFoundError as error:
        _fail(InvalidArgument(f"{error.filename} is not there: check the name"), EXIT_REFUSED)
    except ImportError as error:
        _fail(ImportError(f"{error}: see what 'elbowroom doctor' finds missing"), EXIT_FAILED)
    except OSError as error:
        _fail(error, EXIT_FAILED)


def _open_streams() -> None:
    """Let nothing that is said fail: neither for want of a stream nor of a character."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed from outside
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _fail(error: BaseException, code: int) -> None:
    typer.echo(f"elbowroom: {error}", err=True)
    sys.exit(code)
