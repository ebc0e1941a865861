"""What a soak has done so far, on disk, so that it can go on where it was stopped."""

import hashlib
import json
import os
from pathlib import Path

from elbowroom import _native


class Progress:
    """Names of finished pieces of work. Another build of the kernels starts from nothing."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self._path = path
        self._build = hashlib.sha256(Path(str(_native.__file__)).read_bytes()).hexdigest()
        self._done: set[str] = set()
        if path.exists() and not fresh:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["build"] == self._build:
                self._done = set(stored["done"])

    def __contains__(self, name: str) -> bool:
        return name in self._done

    def __len__(self) -> int:
        return len(self._done)

    def add(self, name: str) -> None:
        """Note a finished piece; the file is whole at any moment."""
        self._done.add(name)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        stored = {"build": self._build, "done": sorted(self._done)}
        fresh.write_text(json.dumps(stored), encoding="utf-8")
        os.replace(fresh, self._path)
