"""Where Elbowroom meets what others have written: scripts, trainers, trackers.

Each module imports its framework when it is imported itself, and none is imported before it is
asked for.
"""

from importlib import import_module

_MODULES = ("huggingface", "lightning", "trackers")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"elbowroom.integrations.{name}")
    raise AttributeError(f"module 'elbowroom.integrations' has no attribute {name!r}")
