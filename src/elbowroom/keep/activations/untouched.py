"""Tensors that are left alone: parameters, buffers, the caller's own inputs and odd kinds."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from elbowroom.keep.activations.needs import leaf_of


class Untouched:
    """Storages that are never compressed: parameters, buffers and the caller's own inputs."""

    def __init__(self, model: nn.Module) -> None:
        self.storages: set[int] = set()
        self._callers: list[StorageWeakRef] = []
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

    def holds(self, tensor: Tensor, storage: int) -> bool:
        """Whether the tensor is one of them, a view or autocast's copy of one."""
        if storage in self.storages:
            return True
        if tensor.grad_fn is not None:
            return leaf_of(tensor.grad_fn) is not None
        if tensor.requires_grad:
            return True
        # The copy that autocast makes of a frozen weight has nothing but its shape to tell.
        casting = torch.is_autocast_enabled(tensor.device.type)
        return casting and tuple(tensor.shape) in self._frozen_shapes


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
