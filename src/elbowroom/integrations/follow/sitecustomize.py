"""Python runs this first in every process that a run starts: the folder is on PYTHONPATH.

It waits until the process imports torch. Nothing else of Elbowroom is imported before, and nothing
at all where torch is not used or Elbowroom is not installed.
"""

import os
import sys
from typing import Any


class _Follower:
    """Has the process accompanied as soon as somebody looks for torch."""

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: Any = None) -> Any:
        """The place of torch is told by who takes over."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(_Follower)
        try:
            from elbowroom.integrations.companion import follow

            follow()
            finder = sys.meta_path[0]
        except Exception:
            return None
        return finder.find_spec(fullname, path, target)


def _make_way() -> None:
    """What Python would run without this folder on its path runs now, and takes the name."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != here]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


if "ELBOWROOM_RUN" in os.environ:
    sys.meta_path.insert(0, _Follower)
_make_way()
