"""Packages that only some data need."""

from importlib import import_module
from typing import Any

from elbowroom.errors import BackendUnavailable


def need(module: str, purpose: str, *, package: str | None = None) -> Any:
    """Import an optional package, or say in one sentence what it is needed for."""
    try:
        return import_module(module)
    except ImportError:
        package = package or module.split(".", maxsplit=1)[0]
        raise BackendUnavailable(
            f"{purpose} needs the package {package}: pip install {package}"
        ) from None
