"""The command line as a whole: verbs, errors and exit codes."""

import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version

import pytest
import typer

from elbowroom import CorruptData, InvalidArgument, __version__
from elbowroom.cli import doctor, tables
from elbowroom.cli.main import VERBS, main


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_its_module_and_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module(f"elbowroom.cli.{verb}")
    assert callable(getattr(module, verb, None)) or isinstance(module.app, typer.Typer)
    assert run(verb, "--help") == 0
    assert "Usage" in capsys.readouterr().out


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    lines = capsys.readouterr().out.splitlines()
    words = [line.strip("│ ").split(" ")[0] for line in lines]
    assert tuple(word for word in words if word in VERBS) == VERBS


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"elbowroom {__version__}\n"
    assert version("elbowroom") == __version__


def test_unknown_verb_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("no-such-verb") == 2
    assert "no-such-verb" in capsys.readouterr().err


def run_failing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> int:
    def fail() -> None:
        raise error

    monkeypatch.setattr(doctor, "examine", fail)
    return run("doctor")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidArgument("bound must be positive, got -1"), 2),
        (OSError("disk is full"), 1),
    ],
    ids=["refused", "failed"],
)
def test_expected_failures_are_one_sentence(
    error: Exception,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run_failing(error, monkeypatch) == code
    shown = capsys.readouterr()
    assert shown.err == f"elbowroom: {error}\n"
    assert shown.out == ""


@pytest.mark.parametrize(
    ("error", "code", "advice"),
    [
        (CorruptData("x.er is cut off"), 2, "; fetch the file again, or make it anew"),
        (ImportError("No module named 'h5py'"), 1, ": see what 'elbowroom doctor' finds missing"),
    ],
    ids=["damaged", "missing"],
)
def test_failures_without_a_remedy_get_one(
    error: Exception,
    code: int,
    advice: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run_failing(error, monkeypatch) == code
    assert capsys.readouterr().err == f"elbowroom: {error}{advice}\n"


HEAVY = ["torch", "numpy", "scipy", "matplotlib", "triton", "h5py", "elbowroom._native"]


def modules_after(*words: str) -> tuple[set[str], str]:
    """Run a command in a fresh process; return what it has imported, and what it said."""
    code = (
        "import atexit, runpy, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        f"sys.argv = ['elbowroom', *{list(words)!r}]\n"
        "runpy.run_module('elbowroom', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    return set(done.stderr.split()), done.stdout


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], *([verb, "--help"] for verb in VERBS)], ids=" ".join
)
def test_questions_are_answered_without_torch(words: list[str]) -> None:
    imported, said = modules_after(*words)
    assert "elbowroom.cli.main" in imported
    assert imported.isdisjoint(HEAVY)
    assert "elbowroom" in said


def test_the_package_is_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "elbowroom", "--help"],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Usage: elbowroom" in done.stdout
    assert all(verb in done.stdout for verb in VERBS)


def run_apart(code: str, *, encoding: str = "utf-8") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", code, "doctor"],
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )


def test_a_character_that_the_terminal_lacks_is_replaced() -> None:
    code = (
        "from elbowroom.cli import doctor, main\n"
        "doctor.examine = lambda: print('20 \u2013 30 \u00b5m')\n"
        "main.main()"
    )
    done = run_apart(code, encoding="ascii")
    assert b"20 ? 30 ?m" in done.stdout and b"UnicodeEncodeError" not in done.stderr


def test_streams_that_were_closed_are_no_failure() -> None:
    code = (
        "import sys\n"
        "sys.stdout = None\n"
        "from elbowroom.cli import doctor, main, tables\n"
        "doctor.examine = lambda: tables.print_facts([('a', 'b')]) or sys.exit(3)\n"
        "main.main()"
    )
    done = run_apart(code)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"")


def test_a_table_needs_no_terminal_and_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    tables.print_table(["a"], [["b"]])


def test_an_interrupt_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself typer ends without a word."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", interrupt)
    assert run("doctor") == 130
    assert capsys.readouterr().err == "elbowroom: interrupted\n"


def test_an_interrupt_while_a_verb_is_loaded_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(words: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("elbowroom.cli.main.build", interrupt)
    assert run("doctor") == 130
    assert capsys.readouterr().err == "elbowroom: interrupted\n"
