"""What a computation that runs again must find as it was, and leave as it was.

Random numbers are drawn again from the same place, and running statistics are taken once.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def random_state() -> Any:
    """Where torch's generators are; those of GPUs once they are in use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), cuda


def set_random_state(state: Any) -> None:
    """Go on drawing from there."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state_all(state[1])


def is_same_randomness(one: Any, other: Any) -> bool:
    """Whether nothing was drawn between the two."""
    if not torch.equal(one[0], other[0]):
        return False
    pairs = zip(one[1] or [], other[1] or [], strict=False)
    return len(one[1] or []) == len(other[1] or []) and all(torch.equal(a, b) for a, b in pairs)


def copy_buffers(modules: Iterable[nn.Module]) -> list[Tensor]:
    """The buffers' values."""
    return [buffer.detach().clone() for module in modules for buffer in module.buffers()]


def set_buffers(modules: Iterable[nn.Module], values: list[Tensor]) -> None:
    """Give the buffers those values."""
    buffers = [buffer for module in modules for buffer in module.buffers()]
    with torch.no_grad():
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)


@contextmanager
def buffers_put_back(*modules: nn.Module) -> Iterator[None]:
    """Whatever happens inside of the block leaves no trace in running statistics."""
    before = copy_buffers(modules)
    try:
        yield
    finally:
        set_buffers(modules, before)


@contextmanager
def put_back(*modules: nn.Module) -> Iterator[None]:
    """The same, and random numbers go on where they were.

    Graphs from before find the buffers unchanged: they are, to the last bit.
    """
    random = random_state()
    buffers = tuple(b for m in modules for b in m.buffers() if not b.is_inference())
    try:
        with torch.autograd._unsafe_preserve_version_counter(buffers), buffers_put_back(*modules):
            yield
    finally:
        set_random_state(random)
