"""Which checkpoints stay."""

from collections.abc import Sequence
from dataclasses import dataclass

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint.naming import Name


@dataclass(frozen=True, kw_only=True)
class Keep:
    """The last ones, and of older ones the first after each so many steps; `last=None`: all."""

    last: int | None = 3
    every: int | None = None

    def __post_init__(self) -> None:
        for name in ("last", "every"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidArgument(f"{name} must be a number from 1 on, got {value!r}")

    def choose(self, names: Sequence[Name]) -> list[Name]:
        """Those that stay, of all that there are, oldest first."""
        if self.last is None:
            return list(names)
        kept = list(names[-self.last :])
        if self.every is not None:
            line = _line_of(names)
            reached = set()
            # Of a run that went back, what it has left behind stays until it has come as far again.
            for name in (*line, *(name for name in names if name not in line)):
                if name.step // self.every not in reached:
                    reached.add(name.step // self.every)
                    kept.append(name)
        return [name for name in names if name in kept]


def _line_of(names: Sequence[Name]) -> list[Name]:
    """Those that the newest one has come through, oldest first."""
    line: list[Name] = []
    for name in reversed(names):
        if not line or name.step < line[-1].step:
            line.append(name)
    return line[::-1]


def read_keep(keep: "int | Keep | None") -> Keep:
    """A number is how many of the last stay."""
    if keep is not None and not isinstance(keep, Keep) and (not isinstance(keep, int) or keep < 1):
        raise InvalidArgument(f"keep must be a number from 1 on, a Keep, or None, got {keep!r}")
    return keep if isinstance(keep, Keep) else Keep(last=keep)
