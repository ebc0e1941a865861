"""What the tests of the study share: one thread, no data but what ships, rows made by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elbowroom.study.cells import Cell
from elbowroom.study.journal import Row
from elbowroom.study.treatments import Treatment

MakeRow = Callable[..., Row]


@pytest.fixture(autouse=True, scope="session")
def in_one_thread(one_thread: None) -> None:
    """Also for what fixtures of modules train."""


@pytest.fixture(autouse=True)
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point ELBOWROOM_DATA at an empty folder, whatever this machine has."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("ELBOWROOM_DATA", str(folder))


@pytest.fixture
def make_row() -> MakeRow:
    """Make a row of the journal with a given outcome."""

    def make(
        treatment: Treatment | None = None,
        seed: int = 0,
        value: float | None = 0.5,
        network: str = "cms-perceptron",
        **outcome: Any,
    ) -> Row:
        cell = Cell(network=network, treatment=treatment or Treatment(), seed=seed)
        usual = {
            "state": "finished",
            "diverged_at": None,
            "metric": "AUC",
            "value": value,
            "higher_is_better": True,
            "baselines": {"best column": 0.4},
            "loss": 0.1,
            "steps": 300,
            "step_s": 0.01,
            "threads": 1,
            "saved_bytes": 1000,
            "kept_bytes": 100,
            "ratio": 10.0,
            "gradient_error": 0.05,
            "data_crc32": 7,
        }
        return {"key": cell.key, "settings": cell.settings(), "outcome": {**usual, **outcome}}

    return make
