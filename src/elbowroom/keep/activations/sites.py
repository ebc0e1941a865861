"""Places in a model that save tensors: the same place from step to step."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from torch import Tensor, nn

from elbowroom.codec import Blob

Key = tuple[str, str, int, int]


class Form(Enum):
    """What a budget of memory or time does with the tensors of a place."""

    ENCODE = "encode"
    """By whichever codec is worth its time."""

    BLOCK = "block"
    DENSE = "dense"
    """By the fast codec; by the small one."""

    KEEP = "keep"
    """As they are, unless a mask does or they follow from others."""

    PLAIN = "plain"
    """As they are."""

    OFFLOAD = "offload"

    # Members are the only ones of their kind: the hash of a place in memory will do, and is fast.
    __hash__ = object.__hash__


@dataclass(slots=True, eq=False)
class Site:
    """A place, what is known of the tensors saved there, and what was decided for them."""

    key: Key
    number: int

    bound: float | None = None
    """Absolute, as decided at the last refresh; None before the first."""

    share: float = 0.0
    """Of the gradient's variance that the bound was predicted to add."""

    part_share: float = 0.0
    """The same where only the meter's part of a batch is run."""

    plain_bytes: int = 0
    coded_bytes: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    """Of its last tensor: what it takes as it is and encoded, and the time for it."""

    like: Blob | None = None
    """Choices of the codec for the last exact tensor, without its payload."""

    likes: tuple[Blob | None, Blob | None] = (None, None)
    """The same of values: of the fast codec and of the small one."""

    choice: float = 0.0
    gain: float = 0.0
    """Inverse of the bound for which they were made, and how much smaller the small one was."""

    saving: float = 0.0
    """Bytes that the small one saved for each of the tensor's."""

    block_share: float | None = None
    """Bytes that the fast codec holds for each of the tensor's; None while it was not tried."""

    cheap_share: float | None = None
    """The same of a mask, or of what follows from others; None where neither will do."""

    seconds_each: dict[Form, float] = field(default_factory=dict["Form", float])
    """For a byte there and back; under KEEP that of the last."""

    is_small: bool = False
    """Whether the small one was taken last."""

    sample: Tensor | None = None
    """Some values of the last refresh."""

    proven: dict[Any, bool] = field(default_factory=dict[Any, bool])
    """By form: whether what its tensor was said to follow from has really made it."""

    def densely(self) -> tuple[float, float] | None:
        """A bound, and the bits that the last tensor takes there in the small codec."""
        if not (self.choice > 0 and self.gain > 0 and self.coded_bytes > 0):
            return None
        return 1 / self.choice, 8 * self.coded_bytes / (1.0 if self.is_small else self.gain)

    def expect(self, plain_bytes: int) -> None:
        """A tensor of this size was not encoded: guess what that would have taken."""
        if self.coded_bytes == 0:
            self.coded_bytes = plain_bytes
        elif plain_bytes != self.plain_bytes:
            self.coded_bytes = self.coded_bytes * plain_bytes // max(1, self.plain_bytes)
        self.plain_bytes = plain_bytes

    @property
    def name(self) -> str:
        """As the ledger shows it."""
        module, function, call, save = self.key
        suffix = "" if call == 0 else f" (call {call + 1})"
        return f"{module or 'model'}: {function}[{save}]{suffix}"


class Sites:
    """All sites of a model, found by module, function, call and save."""

    def __init__(self) -> None:
        self._sites: dict[Key, Site] = {}

    def at(self, key: Key) -> Site:
        """The site of a key, made when it is new."""
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = Site(key, len(self._sites))
        return site

    def __iter__(self) -> Iterator[Site]:
        return iter(list(self._sites.values()))


class Calls:
    """Counts the calls of one pass, so that each save finds its site."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._counts: dict[tuple[str, str], int] = {}
        self._call: tuple[str, str, int] = ("", "save", 0)
        self._save = 0

    def start(self, module: str, function: str) -> None:
        """The next saves belong to this call."""
        count = self._counts.get((module, function), 0)
        self._counts[(module, function)] = count + 1
        self._call = (module, function, count)
        self._save = 0

    def site(self) -> Site:
        """The site of the next save."""
        key = (*self._call, self._save)
        self._save += 1
        return self._sites.at(key)

    def site_of(self, label: str, save: int) -> Site:
        """The site of a save that has a name within its call."""
        module, function, call = self._call
        return self._sites.at((module, f"{function} {label}", call, save))


class Names:
    """Names of modules, looked up again when modules were added."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names: dict[int, str] = {}

    def of(self, module: nn.Module) -> str:
        """The module's path in the model, or its class where it is not part of it."""
        name = self._names.get(id(module))
        if name is None:
            self._names = {id(m): n for n, m in self._model.named_modules()}
            name = self._names.setdefault(id(module), type(module).__name__)
        return name
