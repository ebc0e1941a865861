"""How one frame of a history is made small: each keeps its bound, whatever it is good at."""

from dataclasses import dataclass
from typing import Protocol

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


@dataclass(frozen=True, slots=True)
class _Plain:
    blob: Blob

    @property
    def nbytes(self) -> int:
        return self.blob.nbytes

    def decode(self) -> Tensor:
        return decode(self.blob)


class PlainCoder:
    """The codec, which looks for its choices now and then, and else follows the frame before."""

    def __init__(self) -> None:
        self._last: Blob | None = None
        self._age = 0

    def encode(self, frame: Tensor, bound: Bound) -> Coded:
        """Encode a frame."""
        # What was best for a quiet field at the start is slow and large for a lively one.
        self._age = self._age % _RENEWED_AFTER + 1
        self._last = encode(frame, bound, like=self._last if self._age > 1 else None)
        return _Plain(self._last)


_RENEWED_AFTER = 32
