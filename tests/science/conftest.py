"""What the tests of the applications share: one thread, and a data folder of their own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def in_one_thread(one_thread: None) -> None:
    """Also for what fixtures of modules train."""


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point ELBOWROOM_DATA at an empty folder, whatever this machine has."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("ELBOWROOM_DATA", str(folder))
    return folder
