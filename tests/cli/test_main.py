"""The command line as a whole: verbs, errors and exit codes."""

import subprocess
import sys
from importlib import import_module
from importlib.metadata import version

import pytest
import typer

from elbowroom import InvalidArgument, __version__
from elbowroom.cli import doctor
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
    text = capsys.readouterr().out
    assert all(verb in text for verb in VERBS)


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"elbowroom {__version__}\n"
    assert version("elbowroom") == __version__


def test_unknown_verb_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("no-such-verb") == 2
    assert "no-such-verb" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [(InvalidArgument("bound must be positive, got -1"), 2), (OSError("disk is full"), 1)],
    ids=["refused", "failed"],
)
def test_expected_failures_are_one_sentence(
    error: Exception,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(doctor, "examine", fail)
    assert run("doctor") == code
    shown = capsys.readouterr()
    assert shown.err == f"elbowroom: {error}\n"
    assert shown.out == ""


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, elbowroom; before = set(sys.modules)\n"
        "from elbowroom.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'scipy', 'matplotlib', 'triton', 'h5py'}\n"
        "assert not (heavy & (set(sys.modules) - before)), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)
