"""What the tests of the applications share: one thread, and a data folder of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: the networks are tiny and the machine may be busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point ELBOWROOM_DATA at an empty folder, whatever this machine has."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("ELBOWROOM_DATA", str(folder))
    return folder
