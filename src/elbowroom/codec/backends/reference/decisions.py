"""Decisions of the model sparse: bins that learn, and a binary range coder."""

from abc import ABC, abstractmethod
from collections.abc import Hashable

from elbowroom.errors import CorruptData

_SHARP_MEMORY = 20
_BROAD_MEMORY = 200
_PLAIN = 32768


class Bin:
    """The share of yes in 65536ths, and how many decisions it has seen."""

    def __init__(self) -> None:
        self.share, self.count = 32768, 0

    def learn(self, answer: bool, memory: int) -> None:
        """Move towards the answer."""
        goal = 65520 if answer else 16
        self.share += (goal - self.share) * (131072 // (2 * self.count + 3)) >> 16
        self.count = min(self.count + 1, memory)


class Bins:
    """Two bins for each decision, by its kind and its sharp and broad contexts."""

    def __init__(self) -> None:
        self._sharp: dict[Hashable, Bin] = {}
        self._broad: dict[Hashable, Bin] = {}

    def fetch(self, kind: str, sharp: Hashable, broad: Hashable) -> tuple[Bin, Bin]:
        """The bins of a decision; new ones if its contexts were not met before."""
        return (
            self._sharp.setdefault((kind, sharp), Bin()),
            self._broad.setdefault((kind, broad), Bin()),
        )


class Coder(ABC):
    """What encoder and decoder share: bins, and the range with the times it grew."""

    def __init__(self) -> None:
        self.bins = Bins()
        self.range = 2**64 - 1
        self.steps = 0

    def decide(self, kind: str, sharp: Hashable, broad: Hashable, answer: bool) -> bool:
        """Code a decision, whose answer counts only when encoding, and return its answer."""
        one, other = self.bins.fetch(kind, sharp, broad)
        answer = self._code(65536 - (one.share + other.share >> 1), answer)
        one.learn(answer, _SHARP_MEMORY)
        other.learn(answer, _BROAD_MEMORY)
        return answer

    def decide_plainly(self, answer: bool) -> bool:
        """The same with even chances."""
        return self._code(_PLAIN, answer)

    def _code(self, share_of_no: int, answer: bool) -> bool:
        part = (self.range >> 16) * share_of_no
        answer = self._narrow(part, answer)
        self.range = self.range - part if answer else part
        if self.range < 2**32:
            self.range <<= 32
            self.steps += 1
            self._shift()
        return answer

    @abstractmethod
    def _narrow(self, part: int, answer: bool) -> bool:
        """Take the part of the interval that belongs to the answer, and return the answer."""

    @abstractmethod
    def _shift(self) -> None:
        """Make room for 32 bits more."""


class Encoder(Coder):
    """Keeps the lower end of the interval."""

    def __init__(self) -> None:
        super().__init__()
        self.low = 0

    def _narrow(self, part: int, answer: bool) -> bool:
        if answer:
            self.low += part
        return answer

    def _shift(self) -> None:
        self.low <<= 32

    def finish(self) -> bytes:
        """The bytes of the roundest number in the interval, without zeros at their end."""
        size = 8 + 4 * self.steps
        for power in range(size, -1, -1):
            unit = 256**power
            number = -(-self.low // unit) * unit
            if number < self.low + self.range:
                return number.to_bytes(size, "big").rstrip(b"\0")
        raise AssertionError("an interval is never empty")


class Decoder(Coder):
    """Keeps the distance of the number from the lower end of the interval."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data
        self.value = int.from_bytes(self._bytes(0, 8), "big")
        if self.value >= self.range:
            raise CorruptData("decisions: the number is too large")

    def _bytes(self, at: int, count: int) -> bytes:
        return self.data[at : at + count].ljust(count, b"\0")

    def _narrow(self, part: int, answer: bool) -> bool:
        del answer
        if self.value < part:
            return False
        self.value -= part
        return True

    def _shift(self) -> None:
        taken = self._bytes(8 + 4 * (self.steps - 1), 4)
        self.value = self.value << 32 | int.from_bytes(taken, "big")

    def finish(self) -> None:
        """Raise CorruptData unless a writer could have written just these bytes."""
        most = 8 + 4 * self.steps
        if len(self.data) > most:
            raise CorruptData(f"decisions: {len(self.data)} bytes, at most {most} can be")
        if self.data.endswith(b"\0"):
            raise CorruptData("decisions: zeros at the end")
