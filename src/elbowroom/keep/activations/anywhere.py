"""Rooms for modules that nobody has named: whichever modules a process trains.

Hooks that torch calls for every module find the outermost one whose forward runs in training mode
with gradients enabled; it gets a room, and each of its forwards is a pass. Nothing is attached to
the module itself, so that it can be copied and stored as ever, and rooms refer to it weakly: it
goes when the script lets go of it.
"""

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, Literal

import torch
from torch import nn
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from elbowroom.keep.activations.budget import Budget
from elbowroom.keep.activations.compiled import tell
from elbowroom.keep.activations.gauge import Process, device_of
from elbowroom.keep.activations.hooks import top_hooks
from elbowroom.keep.activations.ledger import Ledger, say_bytes
from elbowroom.keep.activations.passes import Pass
from elbowroom.keep.activations.peaks import Peaks
from elbowroom.keep.activations.room import Activations
from elbowroom.keep.activations.schedule import is_due
from elbowroom.keep.activations.tally import Tally
from elbowroom.keep.activations.watch import tables_unchanged
from elbowroom.sizes import parse_bytes

# By name, since importing them takes as long as torch itself.
_PASSED_OVER = {
    "ScriptModule": "operations of TorchScript cannot be watched",
    "FullyShardedDataParallel": "of sharded models only those of fully_shard (FSDP2) are supported",
}


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What every room gets; memory is the budget of the whole process."""

    tolerance: float = 0.1
    exact: tuple[str, ...] = ()
    memory: str | int | None = None
    overhead: float | None = 0.25
    rule: Literal["variance", "comet", "certified"] = "variance"


@dataclass(eq=False, slots=True)
class Account:
    """A trained module, as long as it lives and after."""

    name: str
    room: Activations | None
    """None when the module is gone."""

    is_on_host: bool = True
    """Where its parameters are."""

    passes: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    """Of all passes but those that may still run backward."""

    recent: deque[Tally] = field(default_factory=deque[Tally])
    """Of those: several forwards may come before one backward."""

    budget: Budget | None = None
    """Of the whole process, where this module has to meet it."""

    unpredicted: int = 0
    """Passes that rounded something before an error could be predicted."""

    peak_bytes: int = 0
    """Most that the process has taken until the account was closed; of a device, most that the
    budget has seen."""

    pass_peak_bytes: int = 0
    """Most that the budget has seen."""

    gradient_error: float = 0.0
    """Largest that was predicted of a pass."""

    measured_error: float = 0.0
    """Largest that the meter has read."""

    has_failed: bool = False
    """Whether the last forward has not come to its end, or to one with an exception."""

    ledger: Ledger = field(default_factory=Ledger)
    """Of the last pass that came to its end."""

    def turn(self, keep: int = 4) -> None:
        """The last pass is over; times are added up but for the few passes before this one."""
        if self.room is None:
            return
        self.recent.append(self.room.last_pass)
        while len(self.recent) > keep:
            tally = self.recent.popleft()
            self.encode_s += tally.encode_s
            self.decode_s += tally.decode_s
            self.gradient_error = max(self.gradient_error, tally.gradient_error)
            self.unpredicted += tally.is_rounded and not tally.gradient_error
        # Making a ledger takes its time; older ones are for passes that fail.
        if not self.has_failed and (keep == 0 or self.passes == 1 or is_due(self.passes, 64)):
            self.ledger = self.room.ledger
        if self.budget is not None:
            self.pass_peak_bytes = max(self.pass_peak_bytes, self.budget.peak_bytes)
            self.peak_bytes = max(self.peak_bytes, self.pass_peak_bytes)

    def close(self) -> None:
        """The module is gone, or the process ends."""
        self.turn(keep=0)
        if self.room is not None:
            readings = self.room.ledger.readings
            self.measured_error = max((r.measured for r in readings), default=0.0)
            if self.is_on_host:
                # The last step is in the kernel's mark alone, and all that was before the first.
                with suppress(OSError):
                    self.peak_bytes = Process().peak()
            self.room.close()
            self.room = None


@dataclass(eq=False, slots=True)
class _Known:
    """What has been found out about an outermost module."""

    inside: frozenset[int]
    """Identities of its modules."""

    account: Account | None = None
    is_passed_over: bool = False


@dataclass(eq=False, slots=True)
class _Call:
    """A forward of an outermost module that is running in this thread."""

    module: nn.Module
    frame: FrameType
    known: _Known
    room: Activations | None = None
    depth: int = 0

    def is_running(self) -> bool:
        """False after an exception that torch runs no hooks for, such as KeyboardInterrupt."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame is self.frame:
                return True
            frame = frame.f_back
        return False


class Anywhere:
    """Opens rooms around the outermost modules that a process trains."""

    def __init__(self, terms: Terms, tell: Callable[[str], None]) -> None:
        self._terms = terms
        self._tell = tell
        self._told: set[str] = set()
        self.absent = set(terms.exact)
        """Names of modules to be kept exact that no model has had."""

        self._known: dict[int, _Known] = {}
        self._names: dict[str, int] = {}
        self._local = threading.local()
        self._lock = threading.Lock()
        self._handles: list[Any] = []
        self._holder: Account | None = None
        self.accounts: list[Account] = []
        self._inherited: list[Account] = []
        self.peaks = Peaks()

    def forget(self) -> None:
        """This process is a forked one: what its parent has counted is the parent's."""
        self._inherited.extend(self.accounts)
        self.accounts.clear()
        for known in self._known.values():
            known.account = None
        self._names.clear()
        self._holder = None
        self.peaks = Peaks()

    def install(self) -> None:
        """Start to watch every module of the process."""
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def remove(self) -> None:
        """Stop watching, and close all rooms; what they have counted stays."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for account in self.accounts:
            account.close()

    def _enter(self, module: nn.Module, args: Any) -> Any:
        if torch.compiler.is_compiling():
            return None
        return self.enter(module, args, sys._getframe(1))

    def enter(self, module: nn.Module, args: Any, frame: FrameType) -> Any:
        """A module's forward begins; returns what a hook may return, its arguments or None.

        The frame is that of torch's own call: it tells the arguments given by name, which torch
        does not pass to hooks of this kind, and whether the call is still running.
        """
        call: _Call | None = getattr(self._local, "call", None)
        if call is not None:
            if module is not call.module and id(module) in call.known.inside:
                return None
            if call.is_running():
                call.depth += module is call.module
                return None
            self._end(call)
        self._local.call = call = _Call(module, frame, self._find(module))
        if call.known.is_passed_over or not _is_trained(module):
            if not (module.training and torch.is_grad_enabled()):
                # A loss has no parameters, and belongs to what is trained.
                self.peaks.look(is_training=False)
            return None
        account = call.known.account or self._open(module, call.known)
        if account is None or account.room is None or not self._is_free(account):
            return None
        if account.passes:
            self._turn(account, account.room)
        self.peaks.look(is_training=True)
        account.passes += 1
        account.has_failed = True
        call.room = account.room
        marked = call.room._enter_forward(args, frame.f_locals.get("kwargs") or {})
        return None if marked is None else marked[0]

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            self.returned(module, output)
            self.leave(module)

    def returned(self, module: nn.Module, output: Any) -> None:
        """A module's forward has come to its end; `leave` follows."""
        call: _Call | None = getattr(self._local, "call", None)
        if call is not None and module is call.module and not call.depth and call.room is not None:
            tell(call.room._local, output)

    def leave(self, module: nn.Module) -> None:
        """A module's forward is over, perhaps with an exception."""
        call: _Call | None = getattr(self._local, "call", None)
        if call is None or module is not call.module:
            return
        if call.depth:
            call.depth -= 1
            return
        failed = sys.exc_info()[0] is not None
        if call.known.account is not None:
            call.known.account.has_failed = failed
        with tables_unchanged() if failed else nullcontext():
            self._end(call)

    def _end(self, call: _Call) -> None:
        self._local.call = None
        if call.room is not None:
            call.room._exit_forward()
            self.peaks.look(is_training=True)

    def _find(self, module: nn.Module) -> _Known:
        known = self._known.get(id(module))
        if known is None:
            known = _Known(frozenset(map(id, module.modules())))
            self._known[id(module)] = known
            weakref.finalize(module, self._forget, id(module)).atexit = False
        return known

    def _forget(self, key: int) -> None:
        account = self._known.pop(key).account
        if account is None:
            return
        account.close()
        for other in self.accounts:
            # Of many alike, as in cross-validation, the rows of one are enough.
            if other is not account and other.room is None and _is_alike(other, account):
                other.ledger = replace(other.ledger, rows=())

    # Rooms.

    def _open(self, module: nn.Module, known: _Known) -> Account | None:
        if any(is_lazy(parameter) for parameter in module.parameters()):
            # Its first call gives them their shapes, the next one trains them.
            return None
        reason = _reason_to_pass_over(module)
        if reason is not None:
            known.is_passed_over = True
            self._say(f"{_name_of(module)} is passed over: {reason}")
            return None
        with self._lock:
            name = _name_of(module)
            count = self._names[name] = self._names.get(name, 0) + 1
            takes = self._terms.memory is not None and (
                self._holder is None or self._holder.room is None
            )
            # The room's own references would keep the module alive.
            weak: Any = weakref.proxy(module)
            exact = [n for n, _ in module.named_modules() if n in self._terms.exact]
            self.absent -= set(exact)
            room = Activations(
                weak,
                tolerance=self._terms.tolerance,
                exact=exact,
                overhead=self._terms.overhead if self._terms.memory is None else None,
                rule=self._terms.rule,
            )
            is_on_host = device_of(module).type == "cpu"
            name = name if count == 1 else f"{name} ({count})"
            account = Account(name, room, is_on_host)
            if self._terms.memory is not None:
                limit_bytes = parse_bytes(self._terms.memory)
                account.budget = room.share_budget(limit_bytes, holds=takes)
            if takes:
                self._holder = account
            known.account = account
            self.accounts.append(account)
        return account

    def _turn(self, account: Account, room: Activations) -> None:
        """A module's next pass begins."""
        account.turn()
        holder = self._holder
        if account.passes != 1 or holder is None or holder is account or holder.room is None:
            return
        # The peak is the process's, and one room can arrange it: that which has most to give.
        limit_bytes = parse_bytes(self._terms.memory)
        if account.ledger.saved_bytes > holder.room.last_pass.saved_bytes:
            holder.budget = holder.room.share_budget(limit_bytes, holds=False)
            account.budget = room.share_budget(limit_bytes, holds=True)
            self._holder = holder = account
        self._say(
            f"several modules are trained: the budget of {say_bytes(limit_bytes)} is the whole "
            f"process's, and {holder.name} has to meet it; the others are always encoded"
        )

    def _is_free(self, account: Account) -> bool:
        """Whether saved tensors go nowhere else already."""
        hooks = top_hooks()
        if hooks is None:
            return True
        keeper = hooks[0]
        ours = isinstance(getattr(keeper, "__self__", None), Pass)
        if not ours and getattr(keeper, "__module__", "") != "torch.utils.checkpoint":
            self._say(
                f"{account.name} runs within other hooks for saved tensors, which are left to do "
                "their work: passes there are not compressed"
            )
        return False

    def _say(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            self._tell(sentence)


def _is_trained(module: nn.Module) -> bool:
    """Whether this call saves tensors for the gradients of the module's own parameters."""
    core: Any = torch._C
    return (
        module.training
        and torch.is_grad_enabled()
        # Inside a backward: a checkpoint's second forward, or the meter's trial.
        and core._current_graph_task_id() == -1
        and not core._get_tracing_state()
        and not is_fx_symbolic_tracing()
        # Transforms of torch.func refuse hooks for saved tensors.
        and core._functorch.peek_interpreter_stack() is None
        and core._autograd._saved_tensors_hooks_is_enabled()
        and any(p.requires_grad for p in module.parameters())
    )


def _reason_to_pass_over(module: nn.Module) -> str | None:
    for part in module.modules():
        for kind in type(part).__mro__:
            if kind.__name__ in _PASSED_OVER and kind.__module__.startswith("torch."):
                return _PASSED_OVER[kind.__name__]
    if not all(isinstance(p, nn.Parameter) for p in module.parameters()):
        return "its parameters have been replaced by other tensors"
    return None


def _name_of(module: nn.Module) -> str:
    if isinstance(module, DistributedDataParallel | nn.DataParallel):
        module = module.module
    # What torch.compile returns has the module inside.
    return type(getattr(module, "_orig_mod", module)).__name__


def _is_alike(one: Account, other: Account) -> bool:
    return one.name.split(" (")[0] == other.name.split(" (")[0]
