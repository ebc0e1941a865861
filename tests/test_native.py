"""The compiled module: instruction sets, and that its type file says what it holds."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elbowroom import _native

STUB = Path(__file__).parents[1] / "src" / "elbowroom" / "_native.pyi"
LEVELS = ["scalar", "avx2", "avx512"]


def ask(environment: str, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"from elbowroom import _native; {code}"],
        env={**os.environ, "ELBOWROOM_ISA": environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_levels_are_a_prefix_of_all_levels() -> None:
    found = _native.isa_levels()
    assert found == LEVELS[: len(found)]
    assert _native.isa() in found


def test_each_level_can_be_selected(isa: str) -> None:
    assert _native.isa() == isa


def test_unknown_and_impossible_levels_are_refused() -> None:
    before = _native.isa()
    with pytest.raises(ValueError, match="must be scalar, avx2 or avx512, got 'sse9'"):
        _native.set_isa("sse9")
    for level in LEVELS[len(_native.isa_levels()) :]:
        with pytest.raises(ValueError, match="cannot run"):
            _native.set_isa(level)
    assert _native.isa() == before


def test_environment_lowers_the_level() -> None:
    assert ask("scalar", "print(_native.isa())").stdout.strip() == "scalar"


def test_misspelt_environment_is_refused() -> None:
    answer = ask("avx1024", "pass")
    assert answer.returncode != 0
    assert "ELBOWROOM_ISA must be scalar, avx2 or avx512, got 'avx1024'" in answer.stderr


def test_type_file_names_exactly_what_the_module_holds() -> None:
    declared = set()
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            declared.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            declared.add(node.target.id)
    held = {name for name in dir(_native) if not name.startswith("__")}
    assert declared == held
