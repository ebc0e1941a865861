"""Accompanying a process: what it trains gets rooms, in the processes that it starts too.

Nothing heavy is loaded before the script itself loads it: hooks are set when it imports torch, and
rooms are imported with the first module that is trained.
"""

import atexit
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import multiprocessing.spawn
import multiprocessing.util
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from elbowroom.keep.activations.anywhere import Anywhere


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What a run was asked for."""

    tolerance: float = 0.1
    memory: str | None = None
    rule: Literal["variance", "comet", "certified"] = "variance"
    ledger: str | None = None
    """File for the ledger."""

    is_quiet: bool = False
    is_json: bool = False
    """Whether the summary is for programs."""

    script: str = ""


class Companion:
    """One process of a run."""

    def __init__(self, orders: Orders, *, is_child: bool = False) -> None:
        self.orders = orders
        self.is_child = is_child
        """Started by the script itself, not by the user or a launcher."""

        self.has_children = False
        self.has_failed = False
        self.anywhere: Anywhere | None = None
        self.rank: int | None = None if is_child else _rank()
        """Among the processes of a launch or of torch.distributed; None where nobody tells."""

        self.notes: list[str] = []
        self._first: Any = None

    def start(self) -> None:
        """Wait for torch; tell at the end what happened."""
        atexit.register(self.finish)
        # A forked process ends without the functions of atexit.
        multiprocessing.util.register_after_fork(self, Companion._forked)
        os.register_at_fork(after_in_parent=self._note_child)
        self._prepare_children()
        if "torch" in sys.modules:
            self._wait_for_training()
        else:
            sys.meta_path.insert(0, _Arrival("torch", self._wait_for_training))

    def finish(self) -> None:
        """Print and write what was kept in rooms."""
        from elbowroom.integrations.summary import conclude

        conclude(self)

    def say(self, sentence: str) -> None:
        """One line for the user, at once; of several processes the first one speaks."""
        self.notes.append(sentence)
        if not (self.orders.is_quiet or self.orders.is_json or self.rank):
            print(f"elbowroom: {sentence}", file=sys.stderr, flush=True)

    def _prepare_children(self) -> None:
        """Processes that the script spawns find a companion among what they are told."""
        tell = multiprocessing.spawn.get_preparation_data

        def tell_more(name: str) -> dict[str, Any]:
            self._note_child()
            return {**tell(name), "elbowroom": _Birth(self.orders)}

        multiprocessing.spawn.get_preparation_data = tell_more

    def _note_child(self) -> None:
        self.has_children = True

    def _forked(self) -> None:
        self.is_child, self.has_children, self.rank, self.notes = True, False, None, []
        if self.anywhere is not None:
            self.anywhere.accounts.clear()
        multiprocessing.util.Finalize(self, self.finish, exitpriority=0)

    def _wait_for_training(self) -> None:
        """The first module that runs in training mode brings everything else."""
        import torch
        from torch import nn
        from torch.nn.modules.module import register_module_forward_pre_hook

        # It says that hooks fire once more than expected; ours look at the outermost call alone.
        warnings.filterwarnings("ignore", r"Using `torch.compile\(module\)` when there are global")

        def first(module: Any, args: Any) -> Any:
            if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not module.training:
                return None
            frame = sys._getframe(1)
            if self.anywhere is not None or _count_calls(frame) > 1:
                return None
            return self._begin().enter(module, args, frame)

        self._first = register_module_forward_pre_hook(first)
        compile_in_place = nn.Module.compile

        @functools.wraps(compile_in_place)
        def compile_and_watch(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            from elbowroom.keep.activations.compiled import surround

            compile_in_place(module, *args, **kwargs)
            surround(
                module,
                lambda args, kwargs: self._enter(module, args, sys._getframe(1)),
                lambda: self._leave(module),
            )

        every_module: Any = nn.Module
        every_module.compile = compile_and_watch

    def _enter(self, module: Any, args: Any, frame: FrameType) -> Any:
        """A module that was compiled in place is called: no hook tells of that."""
        import torch

        if self.anywhere is None:
            is_inside = _count_calls(frame) > 0
            if is_inside or not torch.is_grad_enabled() or not module.training:
                return None
        return self._begin().enter(module, args, frame)

    def _leave(self, module: Any) -> None:
        if self.anywhere is not None:
            self.anywhere.leave(module)

    def _begin(self) -> "Anywhere":
        from torch import distributed

        from elbowroom.keep.activations.anywhere import Anywhere, Terms

        if self.anywhere is not None:
            return self.anywhere
        self._first.remove()
        if distributed.is_available() and distributed.is_initialized():
            self.rank = distributed.get_rank()
        orders = self.orders
        terms = Terms(tolerance=orders.tolerance, memory=orders.memory, rule=orders.rule)
        logger = logging.getLogger("elbowroom")
        logger.addHandler(_Voice(self.say))
        logger.propagate = False
        self.anywhere = Anywhere(terms, self.say)
        self.anywhere.install()
        return self.anywhere


class _Voice(logging.Handler):
    """Warnings of rooms, such as bounds that were tightened, in the run's own voice."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Pass it on."""
        self._say(record.getMessage())


@dataclass(frozen=True)
class _Birth:
    """Unpickled in a process that the script has spawned, it starts a companion there."""

    orders: Orders

    def __reduce__(self) -> tuple[Callable[[Orders], None], tuple[Orders]]:
        return _accompany_child, (self.orders,)


def _accompany_child(orders: Orders) -> None:
    Companion(orders, is_child=True).start()


class _Arrival(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module as all others would, and tells when it has been imported."""

    def __init__(self, name: str, arrived: Callable[[], None]) -> None:
        self._name = name
        self._arrived = arrived
        self._loader: Any = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Only once, and only for the one module."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the loader does whose place this takes."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As that loader does, which then gets its place back."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._arrived()


def _count_calls(frame: FrameType) -> int:
    """How many calls of modules, one inside of another, this frame lies in or is."""
    from torch import nn

    call = nn.Module._call_impl.__code__
    count, walk = 0, frame
    while walk is not None:
        count += walk.f_code is call
        walk = walk.f_back
    return count


def _rank() -> int:
    """Among the processes that a launcher has started; 0 where there is none."""
    for name in ("RANK", "SLURM_PROCID"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 0
