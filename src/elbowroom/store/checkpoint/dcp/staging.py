"""`Stager`: copies of a state in memory that is warm and used again, on any machine."""

import copy
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.checkpoint.staging import AsyncStager

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint.layout import place_over
from elbowroom.store.checkpoint.snapshot import Buffer, Piece, copy_tensors, lay_out

# The thread of a save that is done lets go of what it has read a moment after it has said so.
_PATIENCE_S = 0.1


def is_wrapper(tensor: Any) -> bool:
    """Whether it has no memory of its own but is made of other tensors, as a DTensor is."""
    kind, plain = type(tensor), cast(Any, Tensor)
    return kind.__torch_dispatch__ is not plain.__torch_dispatch__


@dataclass(kw_only=True)
class _Slot:
    """A buffer, and whether anything that was given out still lies in it.

    Every tensor is made over a view of its own, which lives exactly as long as it does, or anything
    that was made from it without a copy. One view for all would do, but torch crashes when it sends
    a DTensor to another process whose shard does not begin where its memory does.
    """

    buffer: Buffer = field(default_factory=Buffer)
    views: list[weakref.ref[NDArray[np.uint8]]] = field(default_factory=list)
    is_taken: bool = False

    @property
    def is_free(self) -> bool:
        return not self.is_taken and all(view() is None for view in self.views)

    def lend(self, piece: Piece) -> Tensor:
        """The place of a tensor, as one."""
        view = self.buffer.bytes[piece.start : piece.start + piece.layout.nbytes]
        self.views.append(weakref.ref(view))
        return place_over(torch.from_numpy(view), piece.layout)


class Stager(AsyncStager):
    """Copies states for `torch.distributed.checkpoint.async_save`.

    Tensors, those inside of a DTensor too, go to memory of this stager, and everything else is
    copied deeply. The memory is used for the next state as soon as nobody holds a tensor of the
    last one; while a save still reads, other memory is taken. Have one stager for all saves of a
    run: `async_save(..., async_stager=stager)`.
    """

    # A state is whole when `stage` returns.
    _synchronize_after_execute = False

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def reserve(self, state_dict: Mapping[str, Any]) -> None:
        """Have memory for such a state, so that the first save finds it warm."""
        nbytes = lay_out(_Finds(state_dict).tensors)[1]
        slot = self._take(nbytes)
        # Pages are there once they have been written to.
        slot.buffer.bytes[:nbytes] = 0
        slot.is_taken = False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """A copy of the state, in which nothing that happens to the state can be seen."""
        finds = _Finds(state_dict)
        pieces, nbytes = lay_out(finds.tensors)
        slot = self._take(nbytes)
        try:
            copy_tensors(finds.tensors, pieces, slot.buffer)
            for device in {tensor.device for _, tensor in finds.tensors}:
                if device.type != "cpu":
                    torch.accelerator.synchronize(device)
            copies = [slot.lend(piece) for piece in pieces]
        finally:
            slot.is_taken = False
        # What deepcopy finds under the identity of an object it takes for the copy of it.
        return copy.deepcopy(state_dict, finds.rebuild(copies))

    def synchronize_staging(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Give back all memory that no save reads; that of others goes with their tensors."""
        with self._lock:
            self._slots.clear()
            self._is_closed = True

    def _take(self, nbytes: int) -> _Slot:
        """A slot with room for so much: the smallest that has it, else the largest, made larger."""
        with self._lock:
            if self._is_closed:
                raise InvalidArgument("this stager is closed: make another one")
            deadline = time.monotonic() + _PATIENCE_S
            while not (free := [slot for slot in self._slots if slot.is_free]):
                if not self._slots or time.monotonic() > deadline:
                    free = [_Slot()]
                    self._slots += free
                    break
                time.sleep(0.001)
            sizes = [len(slot.buffer.bytes) for slot in free]
            best = min((size for size in sizes if size >= nbytes), default=max(sizes))
            slot = free[sizes.index(best)]
            slot.is_taken, slot.views = True, []
        try:
            slot.buffer.reserve(nbytes)
        except BaseException:
            slot.is_taken = False
            raise
        return slot


@dataclass(frozen=True, kw_only=True)
class _Wrapper:
    """A tensor that is made of others, as a DTensor is of its shard."""

    kind: Any
    inner: dict[str, Any]
    context: Any
    size: torch.Size
    stride: tuple[int, ...]


class _Finds:
    """The tensors of a state: those with memory of their own, and what is made of them."""

    def __init__(self, state: Any) -> None:
        self.tensors: list[tuple[str, Tensor]] = []
        self._plans: dict[int, tuple[Tensor, int | _Wrapper]] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._visit(state, "state")

    def rebuild(self, copies: Sequence[Tensor]) -> dict[int, Any]:
        """The copy of every tensor, under the identity of the original."""
        return {key: _rebuild(plan, copies) for key, (_, plan) in self._plans.items()}

    def _visit(self, value: Any, where: str) -> None:
        if isinstance(value, Tensor):
            # The tensor is kept, so that its identity remains its own.
            self._plans[id(value)] = value, self._take_apart(value, where)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self._visit(item, f"{where}[{key!r}]")
        elif isinstance(value, list | tuple | set | frozenset):
            for number, item in enumerate(value):
                self._visit(item, f"{where}[{number}]")

    def _take_apart(self, tensor: Tensor, where: str) -> int | _Wrapper:
        if is_wrapper(tensor):
            return self._unwrap(tensor, where)
        tensor = tensor.detach()
        key: tuple[Any, ...] = (len(self.tensors),)
        if tensor.layout == torch.strided and tensor.numel() and not tensor.is_conj():
            # Tied weights are two names of one memory, and stay that.
            place = tensor.device, tensor.data_ptr(), tensor.is_neg()
            key = (*place, tensor.dtype, tensor.shape, tensor.stride())
        if key not in self._numbers:
            self._numbers[key] = len(self.tensors)
            self.tensors.append((where, tensor))
        return self._numbers[key]

    def _unwrap(self, tensor: Any, where: str) -> _Wrapper:
        if not hasattr(tensor, "__tensor_flatten__"):
            raise InvalidArgument(
                f"{where} is a {type(tensor).__name__}, which a stager cannot copy: shard with "
                "fully_shard or DTensor, or have torch's own stager copy it"
            )
        names, context = tensor.__tensor_flatten__()
        inner = {name: getattr(tensor, name) for name in names}
        return _Wrapper(
            kind=type(tensor),
            inner={
                name: self._take_apart(value, where) if isinstance(value, Tensor) else _Same(value)
                for name, value in inner.items()
            },
            context=context,
            size=tensor.size(),
            stride=tensor.stride(),
        )


@dataclass(frozen=True)
class _Same:
    """What a wrapper has besides tensors: a mesh of devices is the same for a copy."""

    value: Any


def _rebuild(plan: int | _Wrapper | _Same, copies: Sequence[Tensor]) -> Any:
    if isinstance(plan, int):
        return copies[plan]
    if isinstance(plan, _Same):
        return plan.value
    inner = {name: _rebuild(one, copies) for name, one in plan.inner.items()}
    return plan.kind.__tensor_unflatten__(inner, plan.context, plan.size, plan.stride)
