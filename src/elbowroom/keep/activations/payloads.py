"""The forms in which a saved tensor waits for its backward."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from elbowroom.codec import Blob, decode
from elbowroom.keep.activations.shelf import Shelf, Slot

if TYPE_CHECKING:
    from elbowroom.keep.activations.balance import Balance
    from elbowroom.keep.activations.entries import Entry


class Payload(Protocol):
    """Something from which a tensor can be made again."""

    @property
    def method(self) -> str:
        """As the ledger names it."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held for this tensor alone."""
        ...

    def restore(self) -> Tensor:
        """The tensor, or a stand-in that gives the same backward."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor with gaps or repeats between its elements, and the dense one it was taken from."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    last: tuple[int, ...] | None = None
    """Another shape of the same elements, which it is given in the end."""

    def to(self, shape: tuple[int, ...]) -> "Layout":
        """The same, in this shape in the end."""
        return replace(self, last=shape)

    def apply(self, dense: Tensor) -> Tensor:
        """The tensor in its own shape and order of strides."""
        inverse = [0] * len(self.order)
        for place, axis in enumerate(self.order):
            inverse[axis] = place
        found = dense.permute(inverse).expand(self.shape)
        return found if self.last is None else found.reshape(self.last)


def dense_form(tensor: Tensor) -> tuple[Tensor, Layout | None]:
    """Without gaps and repeats, in order of memory; None where it was so already."""
    if tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return tensor, None
    strides = tensor.stride()
    narrow = tensor
    for axis, stride in enumerate(strides):
        if stride == 0 and tensor.shape[axis] > 1:
            narrow = narrow.narrow(axis, 0, 1)
    order = tuple(sorted(range(tensor.ndim), key=lambda axis: -strides[axis]))
    return narrow.permute(order).contiguous(), Layout(tuple(tensor.shape), order)


def laid_out(dense: Tensor, layout: Layout | None) -> Tensor:
    """Undo `dense_form`."""
    return dense if layout is None else layout.apply(dense)


@dataclass(frozen=True, slots=True)
class Raw:
    """The tensor itself."""

    tensor: Tensor
    owned: bool
    method: str = "keep"

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.tensor.numel() * self.tensor.element_size() if self.owned else 0

    def restore(self) -> Tensor:
        """Make it again."""
        return self.tensor


@dataclass(frozen=True, slots=True)
class Coded:
    """Values within a bound."""

    blob: Blob
    layout: Layout | None
    method: str = "encode"

    shift: float = 0.0
    """Taken off every value that is not zero, and has an error."""

    sides: Payload | None = None
    """Of the dense tensor: ones above zero, and zeros; None where errors may lead across."""

    balance: "Balance | None" = None
    """What makes terms cancel that cancelled before."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.blob.nbytes + (0 if self.sides is None else self.sides.nbytes)

    def restore(self) -> Tensor:
        """Make it again."""
        dense = decode(self.blob)
        if self.shift:
            is_exact = dense == 0
            dense.sub_(self.shift).masked_fill_(is_exact, 0)
        if self.sides is not None:
            # On its own side a value is nearer than it was.
            dense.copysign_(self.sides.restore().sub_(0.5))
        found = laid_out(dense, self.layout)
        return found if self.balance is None else self.balance.apply(found)


@dataclass(frozen=True, slots=True)
class Aliased:
    """Another view of what a second entry holds."""

    source: "Entry"
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    method: str = "share"
    nbytes: int = 0

    @property
    def sources(self) -> "tuple[Entry]":
        """What its values come from."""
        return (self.source,)

    def restore(self) -> Tensor:
        """Make it again."""
        return self.source.values().as_strided(self.shape, self.stride)


@dataclass(frozen=True, slots=True)
class Nothing:
    """Shape and type only: the backward never looks at a value."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    method: str = "free"
    nbytes: int = 0

    def restore(self) -> Tensor:
        """Make it again."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Spent:
    """Nothing any more: backward has written over the values."""

    method: str = "spent"
    nbytes: int = 0

    def restore(self) -> Tensor:
        """Too late."""
        raise RuntimeError(
            "backward was interrupted after it had begun to write a gradient over saved values "
            "(retain_graph was not set): run the forward again"
        )


@dataclass(frozen=True, slots=True)
class Offloaded:
    """On disk, encoded or as it was."""

    slot: Slot
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_blob: bool
    layout: Layout | None
    shift: float = 0.0
    sides: Payload | None = None
    balance: "Balance | None" = None
    method: str = "offload"

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return 0 if self.sides is None else self.sides.nbytes

    def restore(self) -> Tensor:
        """Make it again."""
        data = self.slot.read()
        if self.is_blob:
            blob = Blob.frombytes(data)
            blob.device = self.device
            coded = Coded(
                blob, self.layout, shift=self.shift, sides=self.sides, balance=self.balance
            )
            return coded.restore()
        flat = (
            torch.frombuffer(data, dtype=self.dtype) if data else torch.empty(0, dtype=self.dtype)
        )
        dense = flat.as_strided(self.shape, self.stride).to(self.device)
        return laid_out(dense, self.layout)


def offload(shelf: Shelf, tensor: Tensor, coded: Coded | None) -> Offloaded | None:
    """Put it on the shelf, encoded where it is; None where the shelf takes no more."""
    dense, layout = (tensor, coded.layout) if coded is not None else dense_form(tensor)
    if coded is not None:
        slot = shelf.put(coded.blob.pieces())
    else:
        flat = dense.as_strided((dense.numel(),), (1,)).cpu()
        slot = shelf.put([flat.view(torch.uint8).numpy().data])
    if slot is None:
        return None
    return Offloaded(
        slot,
        tuple(dense.shape),
        dense.stride(),
        tensor.dtype,
        tensor.device,
        coded is not None,
        layout,
        0.0 if coded is None else coded.shift,
        None if coded is None else coded.sides,
        None if coded is None else coded.balance,
    )


SAMPLE = 4096


def take_sample(tensor: Tensor) -> Tensor:
    """Some values of a dense tensor, in 32 runs of neighbours."""
    count = tensor.numel()
    if count <= SAMPLE:
        return tensor.as_strided((count,), (1,)).clone()
    run = SAMPLE // 32
    return tensor.as_strided((32, run), ((count - run) // 31, 1)).reshape(-1)
