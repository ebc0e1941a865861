"""What the tests of the verbs share: running one, and real files to run it on."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from elbowroom.cli.main import main


@dataclass(frozen=True)
class Ending:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Ending]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command line in this process."""

    def run(*words: object) -> Ending:
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        assert isinstance(end.value.code, int)
        shown = capsys.readouterr()
        return Ending(end.value.code, shown.out, shown.err)

    return run


@pytest.fixture
def image() -> np.ndarray:
    """A small smooth array, about what a feature map is."""
    rng = np.random.default_rng(5)
    y, x = np.mgrid[0:24, 0:32]
    waves = np.sin(x / 7) * np.cos(y / 5) + 0.02 * rng.standard_normal((6, 24, 32))
    return waves.astype(np.float32)
