"""Accompanying a process: what it trains gets rooms, in the processes that it starts too.

Nothing heavy is loaded before the script itself loads it: hooks are set when it imports torch, and
rooms are imported with the first module that is trained.
"""

import atexit
import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from elbowroom.integrations.arrival import Arrival
from elbowroom.integrations.family import Family, rank_here

if TYPE_CHECKING:
    from elbowroom.keep.activations.anywhere import Anywhere


class Companion:
    """One process of a run."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.orders = family.orders
        self.is_child = os.getpid() != family.root
        """Started by the script itself, not by the user or a launcher."""

        self.has_failed = False
        self.anywhere: Anywhere | None = None
        self.rank: int | None = self._find_rank()
        """Among the processes of a launch or of torch.distributed; None where nobody tells."""

        self.notes: list[str] = []
        self._first: Any = None

    def start(self) -> None:
        """Wait for torch; tell at the end what happened."""
        atexit.register(self.finish)
        # Imported now, so that processes of the script are over before the summary comes.
        import multiprocessing.process
        import multiprocessing.util

        self.family.announce()
        # A process that multiprocessing has forked ends without the functions of atexit.
        multiprocessing.util.register_after_fork(self, Companion._forked)
        if multiprocessing.process.parent_process() is not None:
            self._forked()
        os.register_at_fork(after_in_child=self._become_child)
        Arrival("torch", self._wait_for_training).await_it()

    def finish(self) -> None:
        """Print, write and report what was kept in rooms."""
        from elbowroom.integrations.summary import conclude

        try:
            conclude(self)
        except Exception as error:
            # The script has done its work: what fails here is told, and is no failure of it.
            print(f"elbowroom: there is no summary: {error!r}", file=sys.stderr)

    def has_breached(self) -> bool:
        """Whether a budget was asked for and not kept to, or nobody can tell."""
        from elbowroom.integrations.summary import find_breach

        try:
            return find_breach(self) is not None
        except Exception as error:
            print(
                f"elbowroom: whether the budget was kept is not known: {error!r}", file=sys.stderr
            )
            return self.orders.memory is not None and not self.has_failed

    def say(self, sentence: str) -> None:
        """One line for the user, at once; of several processes the first one speaks."""
        self.notes.append(sentence)
        is_silent = self.orders.is_quiet or self.orders.is_json or self.rank
        if not is_silent and (not self.is_child or self.family.may_say(sentence)):
            print(f"elbowroom: {sentence}", file=sys.stderr, flush=True)

    def _find_rank(self) -> int | None:
        rank = rank_here()
        if not self.is_child:
            return int(rank or 0)
        return int(rank) if rank and rank != self.family.rank else None

    def _become_child(self) -> None:
        self.is_child, self.rank, self.notes = True, None, []
        if self.anywhere is not None:
            self.anywhere.forget()

    def _forked(self) -> None:
        import multiprocessing.util

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
                lambda output: self._returned(module, output),
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

    def _returned(self, module: Any, output: Any) -> None:
        if self.anywhere is not None:
            self.anywhere.returned(module, output)

    def _begin(self) -> "Anywhere":
        from torch import distributed

        from elbowroom.keep.activations.anywhere import Anywhere, Terms

        if self.anywhere is not None:
            return self.anywhere
        self._first.remove()
        if distributed.is_available() and distributed.is_initialized():
            self.rank = distributed.get_rank()
        orders = self.orders
        terms = Terms(
            tolerance=orders.tolerance,
            exact=tuple(orders.exact),
            memory=orders.memory,
            overhead=orders.overhead,
            rule=orders.rule,
        )
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


def follow() -> None:
    """Accompany a process that a run has started."""
    family = Family.join()
    if family is not None:
        Companion(family).start()


def _count_calls(frame: FrameType) -> int:
    """How many calls of modules, one inside of another, this frame lies in or is."""
    from torch import nn

    call = nn.Module._call_impl.__code__
    count, walk = 0, frame
    while walk is not None:
        count += walk.f_code is call
        walk = walk.f_back
    return count
