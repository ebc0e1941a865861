"""The processes of a distributed run, as far as a checkpoint is concerned."""

from typing import Any

import torch
import torch.distributed as dist


class Ranks:
    """One process among several, or alone.

    All that is exchanged are numbers, over a group of their own on the host: nothing waits behind
    gradients, and nothing is unpickled.
    """

    def __init__(self) -> None:
        self.size, self.rank = 1, 0
        self._group: Any = None
        if dist.is_available() and dist.is_initialized():
            self.size, self.rank = dist.get_world_size(), dist.get_rank()
        if self.size > 1:
            self._group = dist.new_group(backend="gloo")

    @property
    def is_first(self) -> bool:
        """Whether this one decides and writes what all have in common."""
        return self.rank == 0

    def share(self, *numbers: int) -> tuple[int, ...]:
        """The first rank's numbers, for all."""
        if self.size == 1:
            return numbers
        told = torch.tensor(numbers, dtype=torch.int64)
        dist.broadcast(told, 0, group=self._group)
        return tuple(told.tolist())

    def most(self, *numbers: int) -> tuple[int, ...]:
        """The largest that any rank has, one by one."""
        if self.size == 1:
            return numbers
        told = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(told, dist.ReduceOp.MAX, group=self._group)
        return tuple(told.tolist())

    def wait(self) -> None:
        """Until all have come so far."""
        if self.size > 1:
            dist.barrier(group=self._group)
