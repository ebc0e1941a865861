"""Copies that wait for nobody: parameters and moments are copied while the next step computes.

Between two steps of the optimizer nothing changes them. So a thread may copy them beside forward
and backward, and the optimizer's next step waits for it. Everything else, such as statistics of
normalisations and random numbers, changes sooner and is copied at once.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from elbowroom.store.checkpoint.snapshot import Buffer, Piece, copy_tensors

_Named = tuple[str, Tensor]


class Copier:
    """Fills buffers beside the training; optimizers are told to wait for it."""

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._optimizers = tuple(optimizers)
        self._pool = ThreadPoolExecutor(1, "elbowroom copy") if self._optimizers else None
        self._pending: Future[None] | None = None
        self._hooks = [
            optimizer.register_step_pre_hook(lambda *_: self.wait())
            for optimizer in self._optimizers
        ]

    def begin(
        self,
        tensors: Sequence[_Named],
        pieces: Sequence[Piece],
        buffer: Buffer,
        then: Callable[[], None],
    ) -> None:
        """Copy what changes soon; the rest, and what comes then, follow in a thread."""
        steady = self._steady_places()
        later: list[tuple[_Named, Piece]] = []
        if steady:
            pairs = list(zip(tensors, pieces, strict=True))
            later = [pair for pair in pairs if _place_of(pair[0][1]) in steady]
            tensors, pieces = _apart(p for p in pairs if _place_of(p[0][1]) not in steady)
        copy_tensors(tensors, pieces, buffer)
        if self._pool is None or not later:
            _await_devices()
            then()
            return
        ready = torch.cuda.Event() if _has_device() else None
        if ready is not None:
            ready.record()

        def work() -> None:
            # One thread: the training needs the others, and waits only at the end of its step.
            if ready is None:
                copy_tensors(*_apart(later), buffer, threads=1)
            else:
                stream = torch.cuda.Stream()
                stream.wait_event(ready)
                with torch.cuda.stream(stream):
                    copy_tensors(*_apart(later), buffer, threads=1)
                stream.synchronize()
            then()

        self._pending = self._pool.submit(work)

    @property
    def is_busy(self) -> bool:
        """Whether something is being copied."""
        return self._pending is not None

    def wait(self) -> None:
        """Until nothing is being copied; raises what went wrong."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Finish, and let the optimizers go."""
        self.wait()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._pool is not None:
            self._pool.shutdown()

    def _steady_places(self) -> set[int]:
        """Memory that only an optimizer's step writes to."""
        places: set[int] = set()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                places |= {_place_of(parameter) for parameter in group["params"]}
            for state in optimizer.state.values():
                places |= {_place_of(value) for value in _tensors_in(state)}
        return places


def _tensors_in(state: Any) -> Iterable[Tensor]:
    values = state.values() if isinstance(state, dict) else ()
    return (value for value in values if isinstance(value, Tensor))


def _place_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _apart(pairs: Iterable[tuple[_Named, Piece]]) -> tuple[list[_Named], list[Piece]]:
    found = list(pairs)
    return [named for named, _ in found], [piece for _, piece in found]


def _has_device() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _await_devices() -> None:
    if _has_device():
        torch.cuda.synchronize()
