"""Folders and files that somebody else has prepared: nothing outside of what was asked for."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

import elbowroom
from elbowroom.bench.memory import measure_peaks
from tests.report.runs import record

from .conftest import Command


def test_a_planted_link_is_not_written_through(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name that was known before, and by one that was guessed."""
    monkeypatch.setattr("secrets.token_hex", lambda count: "00" * count)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    np.save(tmp_path / "x.npy", np.arange(6.0))
    for middle in (os.getpid(), "00000000"):
        (tmp_path / f".x.er.{middle}.partial").symlink_to(precious)
    assert command("encode", tmp_path / "x.npy", tmp_path / "x.er", "--lossless").code == 1
    (tmp_path / ".x.er.00000000.partial").unlink(missing_ok=True)
    assert command("encode", tmp_path / "x.npy", tmp_path / "x.er", "--lossless").code == 0
    (tmp_path / f".y.npy.{os.getpid()}.partial").symlink_to(precious)
    assert command("decode", tmp_path / "x.er", tmp_path / "y.npy").code == 0
    assert precious.read_text() == "precious"
    assert np.array_equal(np.load(tmp_path / "y.npy"), np.arange(6.0))


def test_a_page_that_is_a_link_is_replaced(command: Command, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    record(tmp_path / "run", "plain", steps=1)
    (tmp_path / "run" / "report.html").symlink_to(precious)
    assert command("report", tmp_path / "run").code == 0
    assert precious.read_text() == "precious"
    page = tmp_path / "run" / "report.html"
    assert not page.is_symlink() and page.read_text(encoding="utf-8").startswith("<!DOCTYPE")


@pytest.mark.parametrize(
    "shape",
    ["(" + "4611686018427387904, " * 300 + ")", f"(0, {2**62}, {2**62})", "(-1,)", f"({10**900},)"],
)
def test_impossible_shapes(command: Command, tmp_path: Path, shape: str) -> None:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    (tmp_path / "x.npy").write_bytes(head + bytes(8))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as packed:
        packed.writestr("x.npy", head + bytes(8))
    for name in ("x.npy", "x.npz"):
        ended = command("encode", tmp_path / name, tmp_path / "x.er", "--lossless")
        assert ended.code == 2 and ended.err.count("\n") == 1 and len(ended.err) < 500
        assert "impossible shape" in ended.err or "not a .npy file" in ended.err


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "C:x", "..\\x"])
def test_members_that_lead_elsewhere(command: Command, tmp_path: Path, name: str) -> None:
    held = io.BytesIO()
    np.save(held, np.arange(4.0))
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as packed:
        packed.writestr(f"{name}.npy", held.getvalue())
    assert command("encode", tmp_path / "in.npz", tmp_path / "x.er", "--lossless").code == 0
    ended = command("decode", tmp_path / "x.er", tmp_path / "x.npz")
    assert ended.code == 2 and "outside of its folder" in ended.err
    assert not (tmp_path / "x.npz").exists()
    assert command("decode", tmp_path / "x.er", tmp_path / "x.safetensors").code == 0


def test_names_do_not_turn_the_line_around(command: Command, tmp_path: Path) -> None:
    held = io.BytesIO()
    np.save(held, np.arange(4.0))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as packed:
        packed.writestr("a\u202egpj.exe.npy", held.getvalue())
    ended = command("encode", tmp_path / "x.npz", tmp_path / "x.er", "--lossless")
    assert ended.code == 0
    for words in (
        ["inspect", tmp_path / "x.er"],
        ["decode", tmp_path / "x.er", tmp_path / "y.npz"],
    ):
        shown = command(*words)
        assert shown.code == 0 and "\u202e" not in shown.out and "\\u202e" in shown.out
    assert "\u202e" not in ended.out


def test_children_do_not_import_from_where_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "pip", "random"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    assert measure_peaks(np.zeros(5000, np.float32), 1e-3, "block")
    source = Path(str(elbowroom.__file__)).parent
    started = [
        line.partition("sys.executable")[2]
        for path in source.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "sys.executable, " in line
    ]
    assert len(started) == 4 and all(rest.startswith(', "-P"') for rest in started)
