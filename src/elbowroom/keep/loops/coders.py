"""How one frame of a history is made small: each keeps its bound, whatever it is good at."""

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from elbowroom.codec import Blob, Bound, decode, encode


class Coded(Protocol):
    """A frame, encoded."""

    @property
    def nbytes(self) -> int:
        """That it takes."""
        ...

    def decode(self) -> Tensor:
        """The frame, each value within the bound."""
        ...


class Coder(Protocol):
    """Encodes frames of one series, one after the other."""

    def encode(self, frame: Tensor, bound: Bound) -> Coded:
        """Encode a dense tensor of floats or integers."""
        ...

    def tighten(self, by: int) -> None:
        """Room is short (1): take more time for fewer bytes; or there is enough (-1)."""
        ...


@dataclass(frozen=True, slots=True)
class _Plain:
    blob: Blob

    @property
    def nbytes(self) -> int:
        return self.blob.nbytes

    def decode(self) -> Tensor:
        return decode(self.blob)


class PlainCoder:
    """The codec: the fastest way first, and a smaller one each time that room becomes short.

    It looks for its choices now and then, and else follows the frame before: what was best for a
    quiet field at the start is slow and large for a lively one.
    """

    def __init__(self) -> None:
        self._last: Blob | None = None
        self._age = self._level = 0

    def encode(self, frame: Tensor, bound: Bound) -> Coded:
        """Encode a frame."""
        self._age = self._age % _RENEWED_AFTER + 1
        like = self._last if self._age > 1 else None
        codec, effort = _LEVELS[self._level]
        self._last = encode(frame, bound, codec=codec, effort=effort, like=like)
        return _Plain(self._last)

    def tighten(self, by: int) -> None:
        """Take more time for fewer bytes, or less for more."""
        level = min(max(self._level + by, 0), len(_LEVELS) - 1)
        if level != self._level:
            self._level, self._age = level, 0


_RENEWED_AFTER = 32

_Level = tuple[Literal["auto", "block"], Literal["speed", "ratio"]]
_LEVELS: tuple[_Level, ...] = (("auto", "speed"), ("block", "ratio"), ("auto", "ratio"))
