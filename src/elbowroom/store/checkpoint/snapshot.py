"""A copy of a state as it is at one moment, in memory that is warm and used again."""

import contextlib
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elbowroom import _native
from elbowroom.codec.threads import thread_count
from elbowroom.store.checkpoint.layout import Layout, layout_of, place_over

_PAGE_BYTES = 4096
_LINE_BYTES = 64
_HUGE_BYTES = 2 << 20
_POPULATE_WRITE = 23  # Linux's MADV_POPULATE_WRITE, which Python 3.11 has no name for
_PLAIN = (Tensor, torch.nn.Parameter)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A tensor of a snapshot."""

    where: str
    layout: Layout
    start: int


class Buffer:
    """Memory for one snapshot. Its pages are there before they are needed, and stay."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self.bytes = np.empty(0, np.uint8)
        self._tensor = torch.empty(0, dtype=torch.uint8)

    def reserve(self, nbytes: int) -> None:
        """Have room for so much; what was there is lost when it grows."""
        if nbytes <= len(self.bytes):
            return
        nbytes = -(-nbytes // _PAGE_BYTES) * _PAGE_BYTES
        if torch.cuda.is_available():
            # Copies from a GPU run beside computation only into memory that stays where it is.
            self._tensor = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
            self.bytes = self._tensor.numpy()
            return
        self._memory, self.bytes = _take_memory(nbytes)
        self._tensor = torch.from_numpy(self.bytes)

    def bytes_of(self, piece: Piece) -> NDArray[np.uint8]:
        """The memory of a tensor."""
        return self.bytes[piece.start : piece.start + piece.layout.nbytes]

    def tensor(self, piece: Piece) -> Tensor:
        """The place of a tensor, as one."""
        end = piece.start + piece.layout.nbytes
        return place_over(self._tensor[piece.start : end], piece.layout)


def _take_memory(nbytes: int) -> tuple[mmap.mmap, NDArray[np.uint8]]:
    """Memory with all of its pages, large ones where there are: they take less to look up."""
    unit = _HUGE_BYTES if nbytes >= 4 * _HUGE_BYTES else _PAGE_BYTES
    nbytes = -(-nbytes // unit) * unit
    spare = unit if unit > _PAGE_BYTES else 0
    memory = mmap.mmap(-1, nbytes + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % unit
    if spare and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    inside = whole[start : start + nbytes]
    try:
        memory.madvise(_POPULATE_WRITE, start, nbytes)
    except (OSError, AttributeError):
        inside[::_PAGE_BYTES] = 0
    return memory, inside


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A state: what JSON holds of it, and its tensors in a buffer."""

    step: int
    tree: Any
    facts: dict[str, Any]
    pieces: tuple[Piece, ...]
    buffer: Buffer

    def bytes_of(self, piece: Piece) -> NDArray[np.uint8]:
        """The memory of a tensor."""
        return self.buffer.bytes_of(piece)

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(piece.layout.nbytes for piece in self.pieces)


def lay_out(tensors: Sequence[tuple[str, Tensor]]) -> tuple[tuple[Piece, ...], int]:
    """Give every tensor a place, large ones on pages of their own; return also the bytes in all."""
    pieces, position = [], 0
    layouts = [(where, layout_of(tensor, where)) for where, tensor in tensors]
    for where, layout in layouts:
        unit = _PAGE_BYTES if layout.nbytes >= 16 * _PAGE_BYTES else _LINE_BYTES
        position = -(-position // unit) * unit
        pieces.append(Piece(where=where, layout=layout, start=position))
        position += layout.nbytes
    return tuple(pieces), position


def copy_tensors(
    tensors: Sequence[tuple[str, Tensor]],
    pieces: Sequence[Piece],
    buffer: Buffer,
    threads: int | None = None,
) -> None:
    """Copy tensors to their places; those of a GPU are there once its stream has come so far.

    What lies in memory as its place does is copied by one call, past the caches: the place is not
    read first, and what training has in the caches stays there.
    """
    start = buffer.bytes.ctypes.data
    sources: list[int] = []
    targets: list[int] = []
    sizes: list[int] = []
    for (_, tensor), piece in zip(tensors, pieces, strict=True):
        nbytes = piece.layout.nbytes
        if not nbytes:
            continue
        if address := _address_of(tensor, piece.layout):
            sources.append(address)
            targets.append(start + piece.start)
            sizes.append(nbytes)
        else:
            _copy_one(tensor, buffer.tensor(piece))
    _native.copy_runs(sources, targets, sizes, thread_count(threads, sum(sizes)))


def _address_of(tensor: Tensor, layout: Layout) -> int:
    """Where its bytes lie, if they lie as the layout has it and mean what they say; else 0."""
    if type(tensor) not in _PLAIN or not tensor.is_cpu or tensor.stride() != layout.stride:
        return 0
    return 0 if tensor.is_conj() or tensor.is_neg() else tensor.data_ptr()


@torch.no_grad()
def _copy_one(tensor: Tensor, place: Tensor) -> None:
    source = tensor.detach()
    if source.is_conj() or source.is_neg():
        source = source.resolve_conj().resolve_neg()
    if source.itemsize == 1:
        # As bytes: torch cannot copy all of its small types as what they are.
        source, place = source.view(torch.uint8), place.view(torch.uint8)
    place.copy_(source, non_blocking=True)
