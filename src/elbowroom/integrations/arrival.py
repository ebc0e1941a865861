"""Noticing that a module has been imported, however that happens."""

import contextlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class Arrival(importlib.abc.MetaPathFinder):
    """Finds one module as the other finders would, and tells when it has been executed.

    Libraries look a module up before they import it, so that a look-up changes nothing. An import
    that fails may be tried again.
    """

    def __init__(self, name: str, arrived: Callable[[], None]) -> None:
        self._name = name
        self._arrived = arrived

    def await_it(self) -> None:
        """Tell once, also when the module is here already."""
        if self._name in sys.modules:
            self._arrived()
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Asks the finders behind this one, and wraps the loader that they name."""
        if fullname != self._name:
            return None
        for finder in list(sys.meta_path):
            if isinstance(finder, Arrival) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self.end)
                return spec
        return None

    def end(self) -> None:
        """The module is here."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            # What fails here is our own affair; the script has its module.
            with contextlib.suppress(Exception):
                self._arrived()


class _Loader(importlib.abc.Loader):
    """Loads as the loader does whose place it takes, and answers what that one answers."""

    def __init__(self, loader: Any, executed: Callable[[], None]) -> None:
        self._loader = loader
        self._executed = executed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the loader does, which gets its place back."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._executed()
