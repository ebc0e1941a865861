"""Noticing an import, however it happens."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elbowroom.integrations.arrival import Arrival

NAME = "elbowroom_newcomer"


class Told:
    """A finder for a package of the test, and how often it told."""

    def __init__(self) -> None:
        self.times = 0
        self.arrival = Arrival(NAME, self.tell)

    def tell(self) -> None:
        assert sys.modules[NAME].READY
        self.times += 1


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    package = tmp_path / NAME
    package.mkdir()
    (package / "__init__.py").write_text("from pathlib import Path\nREADY = True\n")
    (package / "part.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    watching = Told()
    watching.arrival.await_it()
    yield watching
    for name in [name for name in sys.modules if name.startswith(NAME)]:
        del sys.modules[name]


def test_a_look_up_is_not_an_import(told: Told) -> None:
    for _ in range(2):
        spec: Any = importlib.util.find_spec(NAME)
        assert spec.origin.endswith("__init__.py")
        assert spec.loader.is_package(NAME) and "READY" in spec.loader.get_source(NAME)
    assert told.times == 0 and NAME not in sys.modules
    module = importlib.import_module(f"{NAME}.part")
    assert told.times == 1 and told.arrival not in sys.meta_path
    parent = sys.modules[NAME]
    assert parent.__loader__ is parent.__spec__.loader  # type: ignore[union-attr]
    assert type(parent.__loader__).__name__ == "SourceFileLoader"
    assert importlib.reload(parent) is parent and module.__package__ == NAME
    del sys.modules[NAME]
    assert importlib.import_module(NAME).READY
    assert told.times == 1


def test_an_import_that_fails_may_be_tried_again(told: Told, tmp_path: Path) -> None:
    file = tmp_path / NAME / "__init__.py"
    good = file.read_text()
    file.write_text("import no.such.module")
    with pytest.raises(ModuleNotFoundError, match="no"):
        importlib.import_module(NAME)
    assert told.times == 0 and told.arrival in sys.meta_path
    file.write_text(good)
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert told.times == 1


def test_a_lazy_import_tells_when_the_module_is_used(told: Told) -> None:
    spec: Any = importlib.util.find_spec(NAME)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    assert told.times == 0
    assert module.READY
    assert told.times == 1


def test_what_is_there_already_is_told_at_once(told: Told) -> None:
    importlib.import_module(NAME)
    told.arrival.await_it()
    assert told.times == 2


def test_a_module_that_is_not_installed_is_missing_as_ever() -> None:
    arrival = Arrival("elbowroom_nowhere", pytest.fail)
    arrival.await_it()
    try:
        assert importlib.util.find_spec("elbowroom_nowhere") is None
        with pytest.raises(ModuleNotFoundError, match="No module named 'elbowroom_nowhere'"):
            importlib.import_module("elbowroom_nowhere")
    finally:
        sys.meta_path.remove(arrival)
