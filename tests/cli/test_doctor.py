"""`elbowroom doctor`: complete, readable by people and by programs."""

import json
import subprocess
import sys

import pytest
import torch

import elbowroom
from elbowroom import _native
from elbowroom.cli import doctor
from elbowroom.cli.main import main


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    assert isinstance(end.value.code, int)
    return end.value.code


def test_table_shows_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor") == 0
    text = capsys.readouterr().out
    for word in ("kernels", "compiler", "threads", "gpu", _native.isa(), torch.__version__):
        assert word in text
    assert "\x1b" not in text


def test_the_table_has_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor") == 0
    lines = capsys.readouterr().out.splitlines()
    headings = [line.strip() for line in lines if line.strip() and not line.startswith(" ")]
    assert headings == ["Machine", "Build", "Optional packages"]
    names = [line.split("  ")[1] for line in lines if line.startswith("  ")]
    assert names == [
        *("system", "threads", "memory", "gpu"),
        *("elbowroom", "kernels", "compiler", "python", "torch"),
        *("installed", "not installed"),
    ]


def test_one_core_is_in_the_singular(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = doctor.examine()
    found["threads"] = {"cores": 1, "usable": 1, "torch": 1, "ELBOWROOM_THREADS": "1"}
    monkeypatch.setattr(doctor, "examine", lambda: found)
    assert run("doctor") == 0
    expected = "1 of 1 core usable, torch uses 1 thread, ELBOWROOM_THREADS=1"
    assert expected in capsys.readouterr().out


def test_kernels_that_cannot_be_loaded_are_told() -> None:
    code = (
        "import sys; sys.modules['elbowroom._native'] = None\n"
        "from elbowroom.cli.main import main; main(['doctor'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "not available" in done.stdout and "pip install ." in done.stdout


def test_json_holds_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["elbowroom"] == elbowroom.__version__
    assert found["torch"] == torch.__version__
    assert found["native"] == {
        "isa": _native.isa(),
        "isa_levels": _native.isa_levels(),
        "error": None,
    }
    assert found["threads"]["usable"] >= 1
    assert set(found["packages"]) == set(doctor.OPTIONAL)


def test_machine_without_anything_optional(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    monkeypatch.setattr(doctor, "_memory_bytes", lambda: None)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert run("doctor") == 0
    text = capsys.readouterr().out
    assert "none of the optional packages" in text
    assert "needed only to build from source" in text
