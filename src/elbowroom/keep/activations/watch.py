"""Watching a forward pass: which module and which function is running."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from elbowroom.codec.opaque import opaque
from elbowroom.keep.activations.clock import now_s
from elbowroom.keep.activations.convolutions import InPieces, is_convolution
from elbowroom.keep.activations.hooks import are_on_top
from elbowroom.keep.activations.losses import SUBSTITUTES
from elbowroom.keep.activations.operators.instance import instance_norm
from elbowroom.keep.activations.passes import Pass
from elbowroom.keep.activations.sites import Names
from elbowroom.keep.activations.storages import plain_bytes_of
from elbowroom.keep.activations.trees import tensors_in


class Functions(TorchFunctionMode):
    """Tells the pass when a function has returned, and with what."""

    def __init__(self, now: Pass, modules: "Modules") -> None:
        super().__init__()
        self._now = now
        self._modules = modules

    @opaque
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        now, start = self._now, now_s()
        if now.is_left:
            return func(*args, **(kwargs or {}))
        if now.pending:
            # Saved outside of every function that could be watched.
            now.settle(())
        is_recorded = torch.is_grad_enabled()
        if is_recorded:
            for arg in args:
                if isinstance(arg, Tensor) and arg._version and arg.requires_grad:
                    now.records.note_read(arg)
        if not are_on_top(now.pack):
            out = func(*args, **(kwargs or {}))
            with now.faults.around("results of another's hooks were not told apart, since looking"):
                now.pass_over(tensors_in(out))
            return out
        now.calls.start(self._modules.current, getattr(func, "__name__", "function"))
        called = now_s()
        out = None
        if func in _SUBSTITUTES:
            what = "a function was left to torch, since computing it our way"
            out = now.faults.attempt(
                what, lambda: self._instead(func, args, kwargs or {}), lambda: None
            )
        if out is None:
            first = _next_number()
            with self._around(func):
                out = func(*args, **(kwargs or {}))
            if is_recorded and isinstance(out, Tensor):
                if out._version:
                    now.records.note_made(out, first)
                if len(args) == 2 and type(args[1]) in (int, float):
                    now.records.note_number(out, args[1], first)
        now.untouched.note_made((out,) if isinstance(out, Tensor) else out, args)
        returned = now_s()
        if now.pending or (now.listener is not None and isinstance(out, Tensor)):
            what = "saved tensors were kept as they are, since looking through results"
            # Without gradients nothing is saved, and asking some views for their node is an error.
            found = now.faults.attempt(what, lambda: tensors_in(out), list[Tensor])
            now.settle(found if is_recorded else (), _eps_of(args, kwargs))
            now.weigh()
        now.lap.calls += 1
        now.lap.spent_s += called - start + now_s() - returned
        return out

    def _instead(self, func: Any, args: Any, kwargs: Any) -> Any:
        """By a function of our own, where there is one for this call."""
        now = self._now
        now.tally.is_aside = True
        try:
            out = _SUBSTITUTES[func](*args, **kwargs)
        finally:
            now.tally.is_aside = False
        if out is not None:
            now.tally.stand_for(now.pending, *plain_bytes_of(func, args, kwargs))
        return out

    def _around(self, func: Any) -> AbstractContextManager[Any]:
        is_one = self._now.goes_in_pieces and is_convolution(func)
        return InPieces(self._now.faults) if is_one else nullcontext()


_SUBSTITUTES: dict[Any, Callable[..., Tensor | None]] = {
    **SUBSTITUTES,
    functional.instance_norm: instance_norm,
}
_next_number = torch.autograd._get_sequence_nr


def _eps_of(args: Any, kwargs: Any) -> float | None:
    eps = (kwargs or {}).get("eps", args[4] if len(args) > 4 else None)
    return eps if isinstance(eps, float) else None


_later = threading.local()
_left_behind: list[Any] = []


@contextmanager
def tables_unchanged() -> Iterator[None]:
    """For passes that end inside of a global forward hook after an exception.

    Torch then goes through its table of these hooks as it stands, and the table must not change
    meanwhile: the next pass takes off what this one has left.
    """
    _later.on = True
    try:
        yield
    finally:
        _later.on = False


class Arguments(tuple[Any, ...]):
    """Of a call that is under way: they go when it is over, also when it is interrupted.

    After an interrupt from the keyboard torch calls no hook, not even those it always calls.
    """

    over: Callable[[], None]

    @classmethod
    def of(cls, args: tuple[Any, ...], over: Callable[[], None]) -> "Arguments":
        """The same arguments, and what to do when they are let go."""
        made = cls(args)
        made.over = over
        return made

    def __del__(self) -> None:
        self.over()


def abandon(frames: list[ExitStack], frame: ExitStack, thread: int) -> None:
    """An interrupted call is over, and torch has called no hook for it."""
    if frame in frames and thread == threading.get_ident():
        while frames:
            frames.pop().close()


class Modules:
    """The stack of modules whose forward is running in this thread."""

    def __init__(self, model: nn.Module, names: Names, now: Pass) -> None:
        self._model = model
        self._names = names
        self._now = now
        self._thread = threading.get_ident()
        self._stack: list[str] = []
        self._starts: list[float] = []
        self._handles: list[Any] = []
        self.on_compiled: Callable[[nn.Module], None] | None = None
        """Called before what torch.compile has made of a module runs."""

        self.seconds: dict[str, float] = {}

    @property
    def current(self) -> str:
        """Path of the innermost module."""
        return self._stack[-1] if self._stack else ""

    def install(self) -> None:
        """Start to watch."""
        _take_off(_left_behind)
        self._handles = [
            self._model.register_forward_pre_hook(self._enter_model, with_kwargs=True),
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def pause(self) -> None:
        """Stop watching for a while."""
        _take_off(self._handles)

    def resume(self) -> None:
        """Watch again."""
        self.install()

    def remove(self) -> None:
        """Stop watching."""
        if getattr(_later, "on", False):
            _left_behind.append(self._handles.pop())
        _take_off(self._handles)
        self._stack = []
        # A hook that is left behind must not hold what the pass has kept.
        del self._now

    # A hook that is taken off while hooks run may be called once more, and without the names.
    @opaque
    def _enter_model(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        if threading.get_ident() == self._thread and self._handles:
            with self._now.faults.around("inputs of the model were not told apart, since asking"):
                self._now.untouched.add(tensors_in((args, kwargs)))

    @opaque
    def _enter(self, module: nn.Module, args: Any) -> None:
        if threading.get_ident() != self._thread or not self._handles or self._now.is_left:
            return
        self._stack.append(self._names.of(module))
        self._starts.append(time.perf_counter())
        # By name, since importing the class takes as long as torch itself.
        if self.on_compiled is not None and type(module).__name__ == "OptimizedModule":
            self.on_compiled(module)

    @opaque
    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == self._thread and self._stack and not self._now.is_left:
            name = self._stack.pop()
            spent = time.perf_counter() - self._starts.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + spent


def _take_off(handles: list[Any]) -> None:
    while handles:
        handles.pop().remove()
