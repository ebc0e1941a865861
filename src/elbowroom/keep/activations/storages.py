"""Which memory a pass has saved something of: storages, each of them once.

Plain autograd holds a whole storage for the smallest view of it, and holds it once for all views.
What the user holds as well, such as inputs, targets and outputs with a name, is no memory of
autograd's: nobody would get it back.
"""

from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from elbowroom.keep.activations.readers import ALONE
from elbowroom.keep.activations.trees import map_tensors

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry


class SavedStorage:
    """One storage, and what became of it."""

    __slots__ = (
        *("entries", "is_held", "is_plain", "is_users", "nbytes"),
        *("raw_weight", "raws", "reference", "weight"),
    )

    def __init__(self, reference: StorageWeakRef | None, nbytes: int) -> None:
        self.reference = reference
        """None where it need not be looked at any more."""

        self.nbytes = nbytes
        self.is_users = False
        """Whether somebody besides autograd held it when it was last looked at."""

        self.is_plain = False
        """Whether plain autograd holds it too."""

        self.is_held = False
        """Whether its bytes count among those that are held now."""

        self.entries = self.raws = 0
        """Entries that lie in it and are alive, and how many of them keep the tensor itself."""

        self.weight = self.raw_weight = 0
        """Bytes of all entries that there have been, and of those that were kept as they were."""

    @property
    def saved_bytes(self) -> int:
        """What plain autograd holds for it."""
        return self.nbytes if self.is_plain and not self.is_users else 0

    @property
    def kept_bytes(self) -> int:
        """What is held of it as it is."""
        return self.nbytes if self.raw_weight and not self.is_users else 0


def weight_of(entry: "Entry") -> int:
    """By which the bytes of a storage are shared out; empty tensors have a storage too."""
    return max(1, entry.nbytes_plain)


class Storages:
    """Those of one pass."""

    def __init__(self) -> None:
        self.all: list[SavedStorage] = []
        self._open: dict[int, SavedStorage] = {}
        self._raws: dict[int, int] = {}

    def enter(self, entry: "Entry") -> SavedStorage:
        """An entry lies in it."""
        reference = entry.storage
        storage = None if reference is None else self._open.get(reference.cdata)
        if storage is None:
            storage = SavedStorage(reference, entry.storage_bytes)
            self.all.append(storage)
            if reference is not None:
                # While the reference is held, nothing else gets the address.
                self._open[reference.cdata] = storage
        storage.entries += 1
        storage.weight += weight_of(entry)
        return storage

    def hold(self, entry: "Entry", storage: SavedStorage) -> None:
        """The entry keeps the tensor itself."""
        storage.raws += 1
        storage.raw_weight += weight_of(entry)
        if entry.storage is not None:
            self._raws[entry.storage.cdata] = self._raws.get(entry.storage.cdata, 0) + 1

    def let_go(self, entry: "Entry", storage: SavedStorage) -> None:
        """It does so no more."""
        storage.raws -= 1
        if entry.storage is not None:
            left = self._raws.pop(entry.storage.cdata, 1) - 1
            if left > 0:
                self._raws[entry.storage.cdata] = left

    def look(self, storage: SavedStorage) -> None:
        """Find out whether somebody else holds it."""
        if storage.reference is not None:
            storage.is_users = self.count_others(storage.reference.cdata) > 0

    def count_others(self, cdata: int) -> int:
        """How many hold a storage besides autograd."""
        core: Any = torch._C
        return core._storage_Use_Count(cdata) - (ALONE - 1) - self._raws.get(cdata, 0)

    def close(self) -> None:
        """Nothing more is to come: look at all that are alive."""
        for storage in self._open.values():
            if storage.entries:
                self.look(storage)
            storage.reference = None
        self._open = {}


def plain_bytes_of(function: Any, args: Any, kwargs: Any) -> tuple[int, set[int]]:
    """What a function of torch's saves, found out without its memory.

    Returns:
        The bytes that it makes itself, and the storages of those inputs that it saves as they are.
    """
    is_wide = torch.is_autocast_enabled("cpu")
    given: list[Tensor] = []

    def outline(tensor: Tensor) -> _Outline:
        given.append(tensor)
        dtype = tensor.dtype
        if is_wide and dtype in (torch.float16, torch.bfloat16):
            dtype = torch.float32
        return _Outline(tuple(tensor.shape), tensor.stride(), dtype, tensor.requires_grad)

    args, kwargs = map_tensors(outline, (args, kwargs))
    try:
        nbytes, saved = _saved_by(function, args, tuple(kwargs.items()))
    except TypeError:  # a list, say: not to be remembered
        nbytes, saved = _saved_by.__wrapped__(function, args, tuple(kwargs.items()))
    return nbytes, {given[place].untyped_storage()._cdata for place in saved}


class _Outline(NamedTuple):
    """A tensor without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool


@lru_cache(maxsize=256)
def _saved_by(function: Any, args: Any, kwargs: Any) -> tuple[int, frozenset[int]]:
    """Bytes made, and which of the tensors are saved as they are, in the order of outlines."""
    own: dict[int, int] = {}
    found: dict[int, Tensor] = {}

    def fill(value: Any) -> Any:
        if not isinstance(value, _Outline):
            return value
        made = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device="meta")
        own[made.untyped_storage()._cdata] = len(own)
        return made.requires_grad_(value.requires_grad)

    def note(tensor: Tensor) -> Tensor:
        # Kept until they are counted: an address may be used again.
        found[tensor.untyped_storage()._cdata] = tensor.detach()
        return tensor

    args, kwargs = [fill(value) for value in args], {name: fill(v) for name, v in kwargs}
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        # It may look at values, near its end: what is large has been saved before.
        with suppress(RuntimeError):
            function(*args, **kwargs)
    nbytes = sum(t.untyped_storage().nbytes() for place, t in found.items() if place not in own)
    return nbytes, frozenset(own[place] for place in found if place in own)
