"""A room without a policy: encodes every tensor of a kind with one codec and one bound."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from elbowroom.codec import Bound, decode, encode
from elbowroom.codec.blob import Blob
from elbowroom.study.groups import Groups
from elbowroom.study.kinds import is_chosen, is_values, kind_of
from elbowroom.study.treatments import Treatment

SMALL_ITEMS = 1024  # fewer are left alone: there is nothing to be gained
SEEDS = 2**32

_BOUNDS: dict[str, Callable[[float], Bound]] = {
    "absolute": Bound.absolute,
    "range": Bound.range_relative,
    "pointwise": Bound.pointwise_relative,
}


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Of the chosen tensors in one pass."""

    tensors: int = 0
    saved_bytes: int = 0
    kept_bytes: int = 0
    readings: tuple[Any, ...] = ()


class _Calls(TorchFunctionMode):
    """Knows the function that runs, and its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.name = ""
        self.arguments: tuple[Any, ...] = ()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.name = getattr(func, "__name__", "")
        self.arguments = (*args, *(kwargs or {}).values())
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.name, self.arguments = "", ()


class FixedRoom:
    """Around a forward pass, as `er.Activations` is; parameters and the inputs stay as they are."""

    def __init__(self, model: nn.Module, treatment: Treatment, *, seed: int = 0) -> None:
        self._treatment = treatment
        self._model = model
        self._dither = seed * 7919 % SEEDS
        self._calls = _Calls()
        self._stack = ExitStack()
        self._untouched: set[int] = set()
        self._totals = Totals()
        self.ledger = Totals()

    def __enter__(self) -> "FixedRoom":
        model = self._model
        owned = (*model.parameters(), *model.buffers())
        self._untouched = {_storage(tensor) for tensor in owned}
        self._totals = Totals()
        self._stack = ExitStack()
        handle = model.register_forward_pre_hook(self._note_inputs)
        self._stack.callback(handle.remove)
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._stack.enter_context(hooks)
        self._stack.enter_context(self._calls)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        self.ledger = self._totals

    def _note_inputs(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._untouched |= {_storage(x) for x in inputs if isinstance(x, Tensor)}

    def _pack(self, tensor: Tensor) -> Tensor | Blob | Groups:
        if not self._is_meant(tensor):
            return tensor
        packed = self._encode(tensor.detach())
        totals = self._totals
        self._totals = Totals(
            tensors=totals.tensors + 1,
            saved_bytes=totals.saved_bytes + tensor.numel() * tensor.element_size(),
            kept_bytes=totals.kept_bytes + packed.nbytes,
        )
        return packed

    def _is_meant(self, tensor: Tensor) -> bool:
        if not tensor.is_floating_point() or tensor.numel() < SMALL_ITEMS:
            return False
        if _storage(tensor) in self._untouched:
            return False
        calls = self._calls
        kind = kind_of(calls.name, calls.arguments, tensor)
        assert self._treatment.kind is not None
        return is_chosen(self._treatment.kind, kind) and is_values(kind, calls.arguments, tensor)

    def _encode(self, tensor: Tensor) -> Blob | Groups:
        treatment = self._treatment
        assert treatment.bound is not None and treatment.mode is not None
        self._dither = (self._dither * 1664525 + 1013904223) % SEEDS
        seed = self._dither if treatment.dithered else None
        if treatment.codec == "group":
            return Groups.of(tensor, bits=int(treatment.bound), seed=seed)
        bound = _BOUNDS[treatment.mode](treatment.bound)
        codec = "dense" if treatment.codec == "dense" else "block"
        return encode(tensor, bound, codec=codec, dither=seed)

    @staticmethod
    def _unpack(packed: Tensor | Blob | Groups) -> Tensor:
        if isinstance(packed, Groups):
            return packed.restore()
        if isinstance(packed, Tensor):
            return packed
        made = decode(packed)
        assert isinstance(made, Tensor)
        return made


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
