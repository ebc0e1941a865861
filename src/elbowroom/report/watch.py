"""Watches what plain autograd saves for backward, and holds none of it."""

import functools
import time
import weakref
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


class Watch:
    """Around a forward pass: when which module's tensors were saved, and when they were let go.

    A storage counts once, however many tensors of it are saved. Parameters, buffers and the
    model's own inputs are there anyway and do not count.
    """

    def __init__(self, model: nn.Module) -> None:
        self.moments: list[tuple[float, str, int, int]] = []
        self.saved_bytes = 0
        self._model = model
        self._modules: list[str] = []
        self._hooks = ExitStack()
        self._known: dict[int, weakref.ref[_Held]] = {}
        self._untouched: set[int] = set()
        self._unseen: list[Tensor] = []

    def __enter__(self) -> "Watch":
        self._unseen = [*self._model.parameters(), *self._model.buffers()]
        with ExitStack() as hooks:
            for name, module in self._model.named_modules():
                begin = functools.partial(self._begin, name)
                for handle in (
                    module.register_forward_pre_hook(begin, prepend=True),
                    module.register_forward_hook(self._end, always_call=True),
                ):
                    hooks.callback(handle.remove)
            hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack))
            self._hooks = hooks.pop_all()
        return self

    def __exit__(self, *ending: Any) -> None:
        self._hooks.close()
        self._known.clear()

    def _begin(self, name: str, _: nn.Module, args: Any) -> None:
        if not self._modules:
            inputs = [a for a in args if isinstance(a, Tensor)]
            self._untouched |= {t.untyped_storage()._cdata for t in inputs}
        self._modules.append(name)

    def _end(self, *_: Any) -> None:
        if self._modules:
            self._modules.pop()

    def _pack(self, tensor: Tensor) -> "tuple[Tensor, _Held | None]":
        # Detached: a tensor that its own node saves must not hold that node.
        storage = tensor.untyped_storage()
        if self._unseen:
            self._see()
        if storage._cdata in self._untouched:
            return tensor.detach(), None
        reference = self._known.get(storage._cdata)
        held = None if reference is None else reference()
        if held is None:
            # While anyone holds this, the storage lives, and its address is nobody else's.
            layer = self._modules[-1] if self._modules else ""
            held = _Held(self, layer or "model", storage.nbytes())
            self._known[storage._cdata] = weakref.ref(held)
            self.saved_bytes += held.nbytes
            self.note(held.layer, held.nbytes)
        return tensor.detach(), held

    def _see(self) -> None:
        """Learn which storages are the model's; lazy layers get theirs while they run."""
        seen = [t for t in self._unseen if not is_lazy(t)]
        self._untouched |= {t.untyped_storage()._cdata for t in seen}
        self._unseen = [t for t in self._unseen if is_lazy(t)]

    def note(self, layer: str, nbytes: int) -> None:
        """Bytes came or went."""
        self.moments.append((time.perf_counter(), layer, nbytes, nbytes))


class _Held:
    """Lives as long as autograd holds any tensor of a storage."""

    __slots__ = ("__weakref__", "_watch", "layer", "nbytes")

    def __init__(self, watch: Watch, layer: str, nbytes: int) -> None:
        self._watch, self.layer, self.nbytes = watch, layer, nbytes

    def __del__(self) -> None:
        self._watch.note(self.layer, -self.nbytes)


def _unpack(packed: tuple[Tensor, _Held | None]) -> Tensor:
    return packed[0]
