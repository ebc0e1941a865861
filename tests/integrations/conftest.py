"""What the tests of integrations share: one thread, no hub, the examples."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

Example = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True, scope="session")
def in_one_thread(one_thread: None) -> None:
    """Also for what fixtures of modules train."""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frameworks write where they are started, and ask their hubs unless told not to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Example:
    """Load an example, or run it with arguments."""

    def load(name: str, *words: str) -> dict[str, Any]:
        path = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr("sys.argv", [path, *words])
        return runpy.run_path(path, run_name="__main__" if words else "example")

    return load
