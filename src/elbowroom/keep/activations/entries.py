"""One saved tensor: what it is, who saved it, and what is held of it."""

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from elbowroom.codec.places import Windows
from elbowroom.keep.activations.clock import now_s
from elbowroom.keep.activations.coordinates import Coordinates, coordinates_in, places_in
from elbowroom.keep.activations.laps import Held
from elbowroom.keep.activations.needs import Need, is_accumulator, kind_of, need_of
from elbowroom.keep.activations.payloads import Payload, Raw, Spent
from elbowroom.keep.activations.reasons import ODD
from elbowroom.keep.activations.sites import Site
from elbowroom.keep.versions import Watch

if TYPE_CHECKING:
    from elbowroom.keep.activations.storages import SavedStorage

Identity = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype, int]


def identity_of(tensor: Tensor) -> Identity:
    """Two saves with the same identity are the same values, while the storage lives."""
    return (
        tensor.untyped_storage()._cdata,
        int(tensor.storage_offset()),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor._version,
    )


def values_at_places(tensor: Tensor) -> Tensor:
    """A copy of some values, in row-major order."""
    if tensor.is_contiguous():
        return tensor.view(-1)[places_in(tensor.numel(), tensor.device)]
    shape = tuple(tensor.shape)
    return tensor[coordinates_in(tensor.numel(), shape, tensor.device)]


@dataclass(slots=True)
class Record:
    """One autograd node of the present pass."""

    number: int
    kind: str
    slots: dict[str, "weakref.ref[Entry]"] = field(default_factory=dict)
    following: tuple[tuple[int, int], ...] = ()
    """For each input: the number of the node behind it, or the id of the leaf."""

    details: dict[str, Any] = field(default_factory=dict)
    eps: float | None = None
    is_foreign: bool = False
    """What it saved went through somebody else's hooks, which nobody may call but backward."""

    def entry(self, slot: str) -> "Entry | None":
        """The entry saved in the slot."""
        held = self.slots.get(slot)
        return None if held is None else held()


class Records(dict[int, Record]):
    """Nodes of a pass by their number, and what is known of their outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[tuple[int, int], weakref.ref[Entry]] = {}
        """Entries of outputs as they were made, by node and place."""

        self.versions: dict[int, int] = {}
        """Of outputs of operations in place, as they were made; others begin with nothing."""

        self.numbers: dict[int, float] = {}
        """What was added to a tensor, or taken from it, by node: autograd does not keep it."""

        self.changed: set[int] = set()
        """Nodes whose output has been changed since, unseen by autograd."""

    def note_made(self, tensor: Tensor, first: int) -> None:
        """An operation in place has returned this; its node has at least the number `first`.

        Operations that give back what they got make no node.
        """
        number = -1 if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()
        if number >= first:
            self.versions[number] = tensor._version

    def note_number(self, tensor: Tensor, number: float, first: int) -> None:
        """This came of an operation on a tensor and a number."""
        node = tensor.grad_fn
        if node is not None and node._sequence_nr() >= first and node.name() in _SUMS:
            self.numbers[node._sequence_nr()] = number

    def note_read(self, tensor: Tensor) -> None:
        """An operation is about to read this, which some operation in place has changed."""
        node = tensor.grad_fn
        if node is not None and self._version_of(node) != tensor._version:
            self.changed.add(node._sequence_nr())

    def _version_of(self, node: Any) -> int:
        """Of what the node has made; views share that of what they look at."""
        while kind_of(node) in _VIEWS and node.next_functions[0][0] is not None:
            node = node.next_functions[0][0]
        return 0 if is_accumulator(node) else self.versions.get(node._sequence_nr(), 0)

    def note_entry(self, entry: "Entry", place: int) -> None:
        """What is saved is the output of a node."""
        if entry.producer is not None and self.is_as_made(entry):
            self.made[entry.producer._sequence_nr(), place] = weakref.ref(entry)

    def output(self, node: Any, place: int) -> "Entry | None":
        """The entry of an output, if it holds values, and will."""
        found = self.made.get((node._sequence_nr(), place))
        entry = None if found is None else found()
        if entry is None or not entry.has_values:
            return None
        is_sure = entry.payload is not None or entry.needs & {Need.VALUES, Need.EXACT}
        return entry if is_sure else None

    def is_as_made(self, entry: "Entry") -> bool:
        """Whether nobody has changed the values since the operation that made them."""
        if entry.producer is None or entry.version == 0:
            return entry.version == 0
        return entry.version == self._version_of(entry.producer) or entry.is_as_made


_SUMS = frozenset({"AddBackward0", "SubBackward0", "RsubBackward1"})

_VIEWS = frozenset({"View", "Unsqueeze", "Squeeze", "Alias", "Transpose", "Permute", "T", "Expand"})


@dataclass(frozen=True, slots=True)
class Use:
    """A node's slot that reads an entry, itself or through a derivation."""

    number: int
    kind: str
    slot: str
    path: tuple[str, ...] = ()


UNKNOWN = Use(0, "Unknown", "values")
"""Somebody reads the values, and nobody knows what for."""


class Entry:
    """What autograd holds in place of a saved tensor."""

    __slots__ = (
        "__weakref__",
        "bands",
        "bound",
        "decode_s",
        "device",
        "dtype",
        "encode_s",
        "error",
        "grown",
        "has_step",
        "held",
        "instead_bytes",
        "is_counted",
        "is_left_alone",
        "is_open",
        "is_row_major",
        "nbytes_plain",
        "on_release",
        "payload",
        "probe",
        "producer",
        "raw",
        "reads",
        "reason",
        "recent",
        "row",
        "saved_in",
        "shape",
        "signs",
        "site",
        "storage",
        "storage_bytes",
        "uses",
        "version",
        "warm",
        "watch",
        "windows",
    )

    def __init__(self, tensor: Tensor, site: Site, *, is_plain: bool = True) -> None:
        """Tensors that are not plain, such as sparse ones, need not have a storage or a size."""
        self.site = site
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.device = tensor.device
        self.is_row_major = is_plain and tensor.is_contiguous()
        self.version = tensor._version
        self.watch = Watch(tensor, is_plain=is_plain)
        storage = tensor.untyped_storage() if is_plain else None
        self.storage = None if storage is None else StorageWeakRef(storage)
        self.storage_bytes = 0 if storage is None else storage.nbytes()
        # What is expanded has no memory for each of its elements.
        nbytes = tensor.numel() * tensor.element_size() if is_plain else 0
        self.nbytes_plain = min(nbytes, self.storage_bytes)
        self.raw: Tensor | None = tensor.detach()
        # Until it is settled: a node must not be held by what its own graph holds.
        self.producer: Any = tensor.grad_fn
        self.payload: Payload | None = None
        self.uses: list[Use] = []
        self.bound = 0.0
        self.recent: weakref.ref[Tensor] | None = None
        self.warm: Tensor | None = None
        """Its values, held for readers that are near."""
        self.windows: Windows | None = None
        self.bands: tuple[float, ...] | None = None
        self.has_step = False
        """Whether a reader tells values above zero from those below, and reads more than that."""

        self.encode_s = 0.0
        self.held: Held | None = None
        """What its form took, for those who plan the next pass."""
        self.decode_s = 0.0
        """Before it had a row."""

        self.is_open = False
        """Whether it is exact for want of a bound: looks tell what its errors would do."""

        self.error: float | None = None
        """Standard deviation of what it has from its sources, once that was asked for."""
        self.grown: list[tuple[Entry, float]] | None = None
        """Its sources and how their errors grow on the way, once that was asked for."""

        self.row = -1
        self.reads = 0
        self.probe: Tensor | None = None
        """Some of its values as they were, where what derives from it is to be compared."""
        self.signs: Payload | None = None
        """Once its values have been written over: what its last reader wants."""
        self.saved_in: SavedStorage | None = None
        self.instead_bytes = 0
        """What plain PyTorch saves in place of this one, in a function that we have replaced."""

        self.is_counted = False
        """Whether the tally counts what is held for it."""

        self.is_left_alone = False
        """Whether it was kept as it is when it was saved, before its readers were known."""

        self.reason = ""
        """Why it is kept as it is."""

        self.on_release: Callable[[Entry], None] | None = None

    def __del__(self) -> None:
        if self.on_release is not None:
            self.on_release(self)

    def keep_as_it_is(self, *, owned: bool, reason: str) -> None:
        """Hold the tensor itself; `owned` when nobody else does."""
        assert self.raw is not None
        self.reason = reason
        self.payload = Raw(self.raw, owned)
        self.raw = None
        self.producer = None

    def leave_alone(self, reason: str, *, owned: bool) -> None:
        """Hold the tensor itself, whoever reads it."""
        self.is_left_alone = True
        self.keep_as_it_is(owned=owned, reason=reason)

    def spend(self) -> None:
        """Its tensor is about to be written over: nobody may ask for it again."""
        if self.on_release is not None:
            self.on_release(self)
        self.on_release, self.payload, self.recent, self.warm = None, Spent(), None, None

    @property
    def needs(self) -> set[Need]:
        """Everything that is read of it."""
        return {need_of(use.kind, use.slot) for use in self.uses} or {Need.VALUES}

    def note_unknown(self, count: int, reader: Use = UNKNOWN) -> None:
        """It was saved, and of its uses there are as many as before.

        So it was by a node that does not say so, as those of custom functions.
        """
        if len(self.uses) == count:
            self.uses.append(reader)

    @property
    def is_near(self) -> bool:
        """Whether what is held has errors, of its own or of what it follows from."""
        sources = getattr(self.payload, "sources", ())
        if getattr(getattr(self.payload, "derivation", None), "is_rounded", False):
            return True
        return self.bound > 0 or any(source.is_near for source in sources)

    @property
    def may_be_near(self) -> bool:
        """Whether what is held has errors, or would have them with the bounds to come."""
        sources = getattr(self.payload, "sources", ())
        return self.is_open or self.is_near or any(source.may_be_near for source in sources)

    @property
    def is_as_made(self) -> bool:
        """Whether nobody has changed the values since the operation that made them.

        A ReLU in place is such a change, and saves what it has made.
        """
        made = 1 if any((u.kind, u.slot) == ("Relu", "result") for u in self.uses) else 0
        return self.version <= made

    @property
    def has_values(self) -> bool:
        """Whether the values themselves can be had, at once or later."""
        held = self.payload
        return self.raw is not None or (held is not None and held.method in _WITH_VALUES)

    def values(self) -> Tensor:
        """The tensor, or what stands for it; kept while someone else holds on to it."""
        if self.raw is not None:
            return self.raw
        if self.recent is not None:
            known = self.recent()
            if known is not None:
                return known
        assert self.payload is not None
        start = now_s()
        tensor = self.payload.restore()
        if self.held is not None:
            self.held.decode_s += now_s() - start
        self.recent = weakref.ref(tensor)
        return tensor

    @property
    def is_at_hand(self) -> bool:
        """Whether its values need not be made."""
        return self.raw is not None or (self.recent is not None and self.recent() is not None)

    def values_anew(self) -> Tensor:
        """Made again from what is held, and from nothing that has been made before."""
        self.recent = self.warm = self.signs = None
        for source in getattr(self.payload, "sources", ()):
            source.values_anew()
        return self.values()

    def some_values(self) -> Tensor:
        """A few, as they were."""
        return values_at_places(self.values()) if self.probe is None else self.probe

    def places(self) -> Tensor:
        """Where those are."""
        return places_in(math.prod(self.shape), self.device)

    def coordinates(self, shape: tuple[int, ...] | None = None) -> Coordinates:
        """The same axis by axis, also as if it had another shape; -1 stands for what is left."""
        count = math.prod(self.shape)
        shape = self.shape if shape is None else shape
        if shape[-1:] == (-1,):
            shape = (*shape[:-1], count // max(1, math.prod(shape[:-1])))
        return coordinates_in(count, shape, self.device)

    def outline(self) -> Tensor:
        """The shape without its memory; strides say nothing of the order."""
        return torch.zeros(1, dtype=self.dtype, device=self.device).expand(self.shape)

    @property
    def is_alive(self) -> bool:
        """Whether the storage that was saved is still the one that it was."""
        return self.storage is not None and not self.storage.expired()

    def check_version(self) -> None:
        """Raise what autograd would: its own check does not see through hooks."""
        self.watch.check()


def kept_entry(tensor: Tensor) -> Entry:
    """Of a tensor that nothing is known of: the tensor itself."""
    entry = Entry(tensor, Site(("", "save", 0, 0), 0), is_plain=False)
    entry.keep_as_it_is(owned=False, reason=ODD)
    return entry


_WITH_VALUES = frozenset({"keep", "encode", "offload", "derive", "share", "bits"})
