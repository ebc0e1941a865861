"""The soak itself: it finds what is broken, repeats exactly, and goes on where it was stopped."""

from pathlib import Path

import numpy as np
import pytest
import torch

from elbowroom.codec.recipe import Dtype
from tests.codec.arrays import same_bits
from tests.keep.activations import random_networks
from tests.soak import __main__ as soak
from tests.soak import every_float, progress, properties
from tests.soak.progress import Progress


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(soak, "FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def few_floats(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One case, four slabs of a few patterns each."""
    monkeypatch.setattr(soak, "CASES", every_float.CASES[:1])
    monkeypatch.setattr(soak, "SLABS", 4)
    monkeypatch.setattr(soak, "spread_order", lambda: [0, 2, 1, 3])
    monkeypatch.setattr(soak, "slab", lambda number: np.arange(99, dtype=np.uint32) << number)


@pytest.mark.parametrize("number", range(12))
def test_examples_hold(number: int) -> None:
    assert properties.fault(f"test {number}") is None


def test_examples_repeat() -> None:
    first, again = properties.draw("7"), properties.draw("7")
    assert str(first) == str(again) and same_bits(first.x, again.x)
    assert str(first) != str(properties.draw("8"))


def test_a_broken_promise_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(blob: object, **options: object) -> torch.Tensor:
        raise ArithmeticError("wrong")

    monkeypatch.setattr(properties, "decode", wrong)
    assert "ArithmeticError: wrong" in str(properties.fault("0 0"))
    assert soak.main(["--only", "properties", "--minutes", "0.1", "--seed", "s", "--first", "5"])
    text = capsys.readouterr().out
    assert "BROKEN example 5 of seed 's'" in text and "10 broken" in text


def test_networks_are_trained_and_a_difference_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--only", "networks", "--networks", "2", "--seed", "s", "--first", "5"]
    assert soak.main(words) == 0
    assert "networks: 2 of seed 's' from 5 on, 0 broken" in capsys.readouterr().out
    monkeypatch.setattr(random_networks, "same_bits", lambda one, two: False)
    assert soak.main([*words[:2], "--networks", "1", *words[4:]]) == 1
    text = capsys.readouterr().out
    assert "BROKEN network 5 of seed 's': exact, pass 0: other bits" in text
    assert "Plan(axes=" in text


def test_floats_are_checked_once(
    few_floats: None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert soak.main(["--only", "floats", "--fraction", "0.5"]) == 0
    assert "0 of 2 slabs done before" in capsys.readouterr().out
    assert soak.main(["--only", "floats"]) == 0
    assert "2 of 4 slabs done before" in capsys.readouterr().out
    assert soak.main(["--only", "floats", "--fresh"]) == 0
    assert "0 of 4 slabs done before" in capsys.readouterr().out
    assert [path.suffix for path in folder.iterdir()] == [".json"]


def test_a_float_that_moves_too_far_is_reported(
    few_floats: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(every_float, "decoded", lambda recipe, patterns: patterns ^ (1 << 30))
    assert soak.main(["--only", "floats"]) == 1
    assert "BROKEN plain: the F32 pattern 0x0 came back as 0x40000000" in capsys.readouterr().out


def test_another_build_starts_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "progress.json"
    Progress(path).add("plain 3")
    assert "plain 3" in Progress(path)
    assert "plain 3" not in Progress(path, fresh=True)
    built = tmp_path / "other.so"
    built.write_bytes(b"another build")
    monkeypatch.setattr(progress._native, "__file__", str(built))
    assert len(Progress(path)) == 0


@pytest.mark.parametrize("words", [["--fraction", "0"], ["--only", "x"], ["--isa", "sse"]])
def test_options_that_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        soak.main(words)
    assert "usage: ./dev soak" in capsys.readouterr().err


def test_slabs_hold_every_pattern_once() -> None:
    assert sorted(every_float.spread_order()) == list(range(every_float.SLABS))
    last = every_float.slab(every_float.SLABS - 1)
    assert last[-1] == 2**32 - 1 and last.size * every_float.SLABS == 2**32
    assert all(every_float.quantises(case, Dtype.F32) for case in every_float.CASES)
