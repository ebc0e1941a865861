"""Takes values out of a record that anybody may have written, and says what is wrong with it."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from elbowroom.errors import CorruptData
from elbowroom.report.model import State
from elbowroom.report.wording import make_writable, shorten

MOST_TEXT = 2000
MOST_KEY = 200
MOST_ITEMS = 200_000
MOST_COUNT = 2**62

_STATES = ("running", "finished", "stopped", "interrupted", "failed")
_MISSING: Any = object()


class Fields:
    """One record, and where it was found."""

    def __init__(self, values: dict[str, Any], path: Path, line: int) -> None:
        self._values = values
        self._path = path
        self._line = line

    @property
    def kind(self) -> str:
        """What the record is about."""
        return self.text("kind", "")

    def refuse(self, what: str) -> NoReturn:
        """Raise, naming file and line."""
        raise CorruptData(f"{self._path}, line {self._line}: {what}")

    def _get(self, name: str, default: Any) -> Any:
        value = self._values.get(name, default)
        if value is _MISSING:
            self.refuse(f"{name!r} is missing")
        return value

    def text(self, name: str, default: str = _MISSING) -> str:
        """A text, cut where it is far too long."""
        return self._text(name, self._get(name, default))

    def _text(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            self.refuse(f"{name!r} must be a text, got {type(value).__name__}")
        return make_writable(shorten(value, MOST_TEXT))

    def state(self, name: str) -> State:
        """How far something is."""
        value = self.text(name)
        if value not in _STATES:
            self.refuse(f"{name!r} must be one of {', '.join(_STATES)}, got {value!r}")
        return value

    def flag(self, name: str, default: bool = _MISSING) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            self.refuse(f"{name!r} must be true or false, got {value!r:.40}")
        return value

    def number(self, name: str, default: float = _MISSING) -> float:
        """A finite number."""
        return self._number(name, self._get(name, default))

    def _number(self, name: str, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) <= 1e300 or not math.isfinite(value):
            self.refuse(f"{name!r} must be a finite number, got {value!r:.40}")
        return float(value)

    def number_or_none(self, name: str) -> float | None:
        """A finite number, or nothing."""
        value = self._get(name, None)
        return None if value is None else self._number(name, value)

    def count(self, name: str, default: int = _MISSING) -> int:
        """A whole number from 0 on."""
        return self._count(name, self._get(name, default))

    def _count(self, name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MOST_COUNT:
            self.refuse(f"{name!r} must be a whole number from 0 on, got {value!r:.40}")
        return value

    def count_or_none(self, name: str) -> int | None:
        """A whole number from 0 on, or nothing."""
        value = self._get(name, None)
        return None if value is None else self._count(name, value)

    def _list(self, name: str) -> list[Any]:
        value = self._get(name, [])
        if not isinstance(value, list) or len(value) > MOST_ITEMS:
            self.refuse(f"{name!r} must be a list of at most {MOST_ITEMS} items")
        return value

    def counts(self, name: str) -> list[int]:
        """Whole numbers."""
        return [self._count(name, value) for value in self._list(name)]

    def list_of_text(self, name: str) -> list[str]:
        """Texts."""
        return [self._text(name, value) for value in self._list(name)]

    def records(self, name: str) -> Iterator["Fields"]:
        """Records within this one."""
        for value in self._list(name):
            if not isinstance(value, dict):
                self.refuse(f"{name!r} must be a list of objects")
            yield Fields(value, self._path, self._line)

    def rows(self, name: str, width: int) -> Iterator[list[float]]:
        """Lists of so many numbers."""
        for value in self._list(name):
            if not isinstance(value, list) or len(value) != width:
                self.refuse(f"{name!r} must be a list of lists of {width} numbers")
            yield [self._number(name, item) for item in value]

    def _pairs(self, name: str) -> dict[str, Any]:
        value = self._get(name, {})
        if not isinstance(value, dict) or len(value) > MOST_ITEMS:
            self.refuse(f"{name!r} must be an object")
        return value

    def texts(self, name: str) -> dict[str, str]:
        """Names and what they stand for."""
        return {_key(key): self._text(name, value) for key, value in self._pairs(name).items()}

    def numbers(self, name: str) -> dict[str, float]:
        """Names and numbers."""
        return {_key(key): self._number(name, value) for key, value in self._pairs(name).items()}


def _key(key: str) -> str:
    return make_writable(shorten(key, MOST_KEY))
