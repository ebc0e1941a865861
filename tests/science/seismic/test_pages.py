"""The page of this part and its examples: their code runs."""

import re
import runpy
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "src" / "elbowroom" / "science" / "seismic" / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(name: str, *words: str) -> None:
    """Run an example as a script, and undo what it does to the process."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", [name, *words])
            runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    finally:
        torch.set_flush_denormal(False)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) >= 3
    for code in blocks:
        exec(compile(code, str(PAGE), "exec"), names)
    assert list(tmp_path.glob("*.svg"))


def test_the_example_of_an_inversion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("seismic_inversion.py", "--quick", "--prior", "dias", "--pictures", str(tmp_path / "out"))
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert float(rows[2][1]) < float(rows[0][1]) and float(rows[2][3]) < float(rows[0][3])
    drawn = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"truth.svg", "found_encoded.svg", "gradient_kept.svg", "misfit.svg"} <= drawn


def test_the_example_within_a_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--quick --alone --memory 3MB --method gauss-newton --inner 2 --kind png --pictures"
    run("seismic_inversion.py", *words.split(), str(tmp_path / "out"))
    misfits = [float(found) for found in re.findall(r"misfit ([\d.]+)", capsys.readouterr().out)]
    assert misfits == sorted(misfits, reverse=True) and len(set(misfits)) == 3
    drawn = {path.name for path in (tmp_path / "out").iterdir()}
    assert drawn == {"truth.png", "start.png", "found_3mb.png", "gradient_3mb.png", "misfit.svg"}


def test_the_example_of_a_neural_equation(capsys: pytest.CaptureFixture[str]) -> None:
    run("neural_ode.py", "--quick")
    said = capsys.readouterr().out
    assert "the same, bit by bit" in said
    losses = [float(found) for found in re.findall(r"loss ([\d.]+)", said)]
    assert len(losses) == 5 and losses[-1] < 0.6 * losses[0]
