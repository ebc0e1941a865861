"""Tensors that are left alone: parameters, buffers, the caller's own and odd kinds."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from elbowroom.keep.activations.needs import leaf_of
from elbowroom.keep.activations.reasons import COPY, YOURS

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry
    from elbowroom.keep.activations.storages import Storages


class Untouched:
    """Storages that are never compressed: parameters, buffers and the caller's own inputs."""

    def __init__(self, model: nn.Module) -> None:
        self.storages: set[int] = set()
        self._callers: list[StorageWeakRef] = []
        self._made: set[int] = set()
        self._frozen_shapes: set[tuple[int, ...]] = set()
        for tensor in (*model.parameters(), *model.buffers()):
            if is_plain(tensor):
                self.storages.add(tensor.untyped_storage()._cdata)
                if not tensor.requires_grad:
                    self._frozen_shapes.add(tuple(tensor.shape))

    def add(self, tensors: Iterable[Tensor]) -> None:
        """The caller's own tensors live on: compressing them would free nothing."""
        storages = [t.untyped_storage() for t in tensors if is_plain(t)]
        self.storages.update(storage._cdata for storage in storages)
        # While a weak reference is held, nothing else gets the address.
        self._callers.extend(StorageWeakRef(storage) for storage in storages)

    def note_made(self, tensors: Any, args: Any) -> None:
        """A function has returned these: what has no graph is not the caller's own."""
        for tensor in tensors if isinstance(tensors, tuple | list) else ():
            if not isinstance(tensor, Tensor) or not is_plain(tensor):
                continue
            is_new = not tensor.requires_grad and not tensor._is_view()
            if is_new and not any(tensor is arg for arg in args):
                self._made.add(tensor.untyped_storage()._cdata)

    def is_callers(self, entry: "Entry", storages: "Storages") -> bool:
        """Whether a tensor was there before and others hold it: targets, noise, masks.

        As far as one can see: what a function of this pass has made is none of them.
        """
        storage = entry.saved_in
        if entry.raw is None or storage is None or entry.payload is not None:
            return False
        if entry.producer is not None or entry.storage is None or entry.storage.cdata in self._made:
            return False
        waiting = storage.entries - storage.raws
        return storages.count_others(entry.storage.cdata) > waiting

    def reason_for(self, tensor: Tensor, storage: int) -> str | None:
        """Why the tensor stays as it is, where it is one of them, or autocast's copy of one."""
        if storage in self.storages:
            return YOURS
        if tensor.grad_fn is not None:
            leaf = leaf_of(tensor.grad_fn)
            if leaf is None:
                return None
            return YOURS if leaf.untyped_storage()._cdata == storage else COPY
        if tensor.requires_grad:
            return YOURS
        # The copy that autocast makes of a frozen weight has nothing but its shape to tell.
        casting = torch.is_autocast_enabled(tensor.device.type)
        return COPY if casting and tuple(tensor.shape) in self._frozen_shapes else None


def is_plain(tensor: Tensor) -> bool:
    """A strided tensor with a storage of its own kind."""
    if type(tensor) is not Tensor and type(tensor) is not nn.Parameter:
        return False
    core: Any = torch._C
    if core._functorch.is_functorch_wrapped_tensor(tensor) or is_batched(tensor):
        return False
    odd = tensor.is_quantized or tensor.is_meta or tensor.is_nested
    return tensor.layout == torch.strided and not odd


def is_batched(tensor: Tensor) -> bool:
    """One of many gradients that go through a graph at once (`is_grads_batched`)."""
    core: Any = torch._C
    return core._functorch.is_legacy_batchedtensor(tensor)
