"""One cell of the study: a network, a treatment and a seed; its key says all that decides it."""

import hashlib
import json
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from elbowroom import __version__
from elbowroom.errors import InvalidArgument
from elbowroom.study.networks import find_network
from elbowroom.study.treatments import Treatment

FORMAT = 1  # of settings and outcomes; a number is never used for two meanings
MOST_SEED = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A training to be done once."""

    network: str
    treatment: Treatment
    seed: int
    steps: int | None = None  # the network's own

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not 0 <= self.seed <= MOST_SEED:
            raise InvalidArgument(f"a seed is a whole number from 0 to 2^32 - 1, got {self.seed}")
        find_network(self.network, steps=self.steps)

    def settings(self) -> dict[str, Any]:
        """Everything that decides the outcome, the machine aside."""
        recipe = find_network(self.network, steps=self.steps)
        assert is_dataclass(recipe) and not isinstance(recipe, type)
        return {
            "format": FORMAT,
            "version": __version__,
            "network": self.network,
            "recipe": _plain({"name": type(recipe).__name__, **asdict(recipe)}),
            "treatment": self.treatment.columns(),
            "seed": self.seed,
        }

    @property
    def key(self) -> str:
        """Of the settings: equal for equal ones alone."""
        text = json.dumps(self.settings(), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def length(self) -> int:
        """Its number of steps."""
        return find_network(self.network, steps=self.steps).schedule.steps

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.network}, {self.treatment.label}, seed {self.seed}"

    def to_json(self) -> str:
        """As a worker is told."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Cell":
        """The reverse."""
        fields: dict[str, Any] = json.loads(text)
        treatment = Treatment(**fields.pop("treatment"))
        return cls(treatment=treatment, **fields)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
